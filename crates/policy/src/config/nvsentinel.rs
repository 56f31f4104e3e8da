//! `nvsentinel`: where health events are reported, and what NVSentinel may do about them.

use std::path::PathBuf;

use super::decode::{self, Findings, Table};
use super::measure::node_name;
use super::mistake::Mistake;
use super::yaml::YamlNode;
use crate::model::{Grade, Mode};
use crate::policy::rule::{Rule, RuleSet};

const KEYS: [&str; 3] = ["socket", "node", "remediation"];

/// The chart of NVSentinel mounts the host's /var/run/nvsentinel at /var/run of its containers,
/// where the socket is nvsentinel.sock.
const EXAMPLE: &str = "write nvsentinel: {socket: /var/run/nvsentinel/nvsentinel.sock}";

/// What a unix socket's address holds, without the final NUL.
const LONGEST_SOCKET: usize = 107;

/// Where health events go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvsentinelSettings {
    /// The socket of the platform connector.
    pub socket: PathBuf,
    /// The node's name in Kubernetes; `None`: the host's name.
    pub node: Option<String>,
    /// Whether NVSentinel may repair the node: then this program must not reboot it. The mistake,
    /// at the key, if it does.
    pub repairs: Option<Mistake>,
}

impl NvsentinelSettings {
    /// The mistake, if NVSentinel may reboot the node and a rule does so as well.
    pub fn check(&self, rules: &RuleSet, mode: Mode) -> Option<Mistake> {
        let repairs = self.repairs.as_ref()?;
        let rule = rules.groups.iter().flat_map(|group| &group.rules).find(|rule| {
            let enforced = &rules.guard_rails.enforced;
            enforced.has(Grade::Reboot)
                && rule.mode_in_force(mode, enforced) == Mode::Enforce
                && reboots(rule)
        })?;
        let hint = format!(
            "write remediation: none, or leave reboot out of enforce (rule {} reboots)",
            rule.id
        );
        Some(repairs.clone().hint(hint))
    }
}

/// Whether a step of a rule's remedy is a reboot.
fn reboots(rule: &Rule) -> bool {
    rule.remedy.as_ref().is_some_and(|remedy| remedy.steps.iter().any(|step| step.reboots()))
}

/// Reads it; `None` where there are mistakes.
pub(super) fn read(node: &YamlNode, findings: &mut Findings<'_>) -> Option<NvsentinelSettings> {
    if node.text().is_some() {
        decode::wrong_kind(node, "nvsentinel", decode::MAPPING, findings).hint(EXAMPLE);
        return None;
    }
    let table = Table::read(node, "nvsentinel", &KEYS, findings)?;
    let Some(place) = table.get("socket") else {
        findings.add(table.span(), "nvsentinel needs a socket").hint(EXAMPLE);
        return None;
    };
    let socket = decode::value(place, "socket", socket, findings);
    let name = table.value_optional("node", node_name, findings);
    let choices = [("none", false), ("reboot", true)];
    let repairs = table.choice_or("remediation", false, &choices, findings)?;
    let mistake = table.get("remediation").filter(|_| repairs).map(|node| {
        let text = "NVSentinel may reboot this node, and so does umawarden: one of them must not";
        findings.source().mistake(node.span.clone(), text)
    });
    Some(NvsentinelSettings { socket: socket?, node: name?, repairs: mistake })
}

fn socket(text: &str) -> Result<PathBuf, String> {
    let path = text.strip_prefix("unix://").unwrap_or(text);
    if !path.starts_with('/') || path.len() > LONGEST_SOCKET || path.contains(char::is_control) {
        return Err(format!(
            "\"{text}\" is no absolute path of a socket, of at most {LONGEST_SOCKET} bytes"
        ));
    }
    Ok(path.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::mistake::{Mistakes, SourceText};
    use crate::config::rules::parse_rules;
    use crate::config::settings::limits::DEFAULT_INTERVAL;
    use crate::config::settings::parse_settings;
    use crate::config::shipped::shipped_rules;

    fn read(yaml: &str) -> Result<NvsentinelSettings, String> {
        let source = SourceText::new("umawarden.yaml", format!("nvsentinel: {yaml}\n"));
        match parse_settings(&source) {
            Ok(file) => Ok(file.nvsentinel.unwrap()),
            Err(Mistakes(mistakes)) => Err(mistakes.iter().map(ToString::to_string).collect()),
        }
    }

    #[test]
    fn a_socket_suffices_and_nvsentinel_repairs_nothing_then() {
        let plain = read("{socket: /run/nvs.sock}").unwrap();
        assert_eq!((plain.socket, plain.node, plain.repairs), ("/run/nvs.sock".into(), None, None));
        let all = "{socket: 'unix:///run/nvs.sock', node: gpu-1.lab, remediation: reboot}";
        let all = read(all).unwrap();
        assert_eq!((all.socket, all.node), ("/run/nvs.sock".into(), Some("gpu-1.lab".to_owned())));
        assert!(all.repairs.is_some());
    }

    #[test]
    fn mistakes_are_reported_with_what_was_meant() {
        for (yaml, found) in [
            ("/run/nvs.sock", "nvsentinel must be a mapping"),
            ("{node: a}", "nvsentinel needs a socket"),
            ("{socket: nvs.sock}", "no absolute path"),
            ("{socket: /run/nvs.sock, node: 'a b'}", "no name of a node"),
            ("{socket: /run/nvs.sock, remediation: all}", "remediation"),
            ("{socket: /run/nvs.sock, sockets: []}", "unknown key \"sockets\""),
        ] {
            let mistake = read(yaml).unwrap_err();
            assert!(mistake.contains(found), "{yaml}: {mistake}");
        }
    }

    #[test]
    fn one_of_both_reboots_and_never_both() {
        let mut rules = parse_rules(&shipped_rules(), DEFAULT_INTERVAL).unwrap();
        let may = read("{socket: /run/nvs.sock, remediation: reboot}").unwrap();
        let must_not = read("{socket: /run/nvs.sock}").unwrap();
        let mistake = may.check(&rules, Mode::Enforce).unwrap().to_string();
        assert!(mistake.contains("one of them must not"), "{mistake}");
        assert!(mistake.contains("remediation: none"), "{mistake}");
        assert_eq!(must_not.check(&rules, Mode::Enforce), None);
        assert_eq!(may.check(&rules, Mode::Observe), None);
        rules.guard_rails.enforced = [Grade::Notice, Grade::Stop].into_iter().collect();
        assert_eq!(may.check(&rules, Mode::Enforce), None);
    }
}
