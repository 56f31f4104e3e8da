//! The node itself: memory, kernel, driver, settings, permissions.

use super::{DoctorFacts, Finding, ProfileMisfits, Severity, advice, known, lack_of_socket};
use crate::model::{ADD_SHIPPED, EventKind, KernelEvent, Recovery, bytes_text, counted, off_text};

/// The first kernel with cachestat(2).
const CACHESTAT: (u32, u32) = (6, 5);
/// The first kernel with `memory.reclaim` in control groups.
const RECLAIM: (u32, u32) = (5, 19);
/// The first kernel whose hung-task report names the owner of the lock.
const LOCK_OWNER: (u32, u32) = (6, 17);

/// Xids after which the device needs a reset or reboot.
const DEVICE_DEAD: [u32; 4] = [79, 119, 120, 143];
/// On GB10: the wrong flavour of the kernel modules.
const WRONG_FLAVOUR: u32 = 169;

pub(super) fn examine(facts: &DoctorFacts) -> Vec<Finding> {
    let mut findings =
        vec![swap(facts), settings(facts), pressure(facts), kernel(facts), daemon(facts)];
    findings.extend(driver(facts));
    findings
        .extend(["kernel", "driver", "node"].into_iter().flat_map(|of| advice::of_node(facts, of)));
    findings.extend(kernel_log(facts));
    findings.extend(lacks(facts));
    findings.push(rules(facts));
    findings
}

fn swap(facts: &DoctorFacts) -> Finding {
    let check = "swap";
    match known(check, &facts.memory, "") {
        Err(finding) => *finding,
        Ok((_, 0)) => Finding::ok(check, "no swap: a shortage of memory shows at once"),
        Ok((_, swap)) => Finding::new(
            check,
            Severity::Warning,
            format!(
                "{} of swap hide a shortage of memory: the driver's memory cannot be swapped, so \
                 everything else is; a rank that swaps while it loads delays the others until they \
                 time out",
                bytes_text(*swap)
            ),
        )
        .fix("sudo swapoff -a, and remove it from /etc/fstab"),
    }
}

fn settings(facts: &DoctorFacts) -> Finding {
    let check = "settings";
    let ProfileMisfits { profile, misfits, costs } =
        match known(check, &facts.settings, "no profile is for this node") {
            Err(finding) => return *finding,
            Ok(settings) => settings,
        };
    if misfits.is_empty() {
        return Finding::ok(check, format!("the kernel settings match profile {profile}"));
    }
    let named =
        misfits.iter().map(|one| format!("{} is {}, not {}", one.name, one.now, one.wanted));
    let named = named.collect::<Vec<_>>().join("; ");
    let text = format!("differ from profile {profile}: {named}");
    let mut fix =
        "`umawarden tune` gives the reasons; sudo umawarden tune --apply --persist".to_owned();
    for cost in costs {
        fix.push_str("; mind: ");
        fix.push_str(cost);
    }
    Finding::new(check, Severity::Warning, text).fix(fix)
}

fn pressure(facts: &DoctorFacts) -> Finding {
    let check = "pressure";
    match known(check, &facts.has_pressure, "") {
        Err(finding) => *finding,
        Ok(true) => Finding::ok(check, "the kernel reports memory pressure (PSI)"),
        Ok(false) => Finding::new(
            check,
            Severity::Warning,
            "the kernel does not report memory pressure (PSI): rules that need it stay unknown, \
             and a collapse is detected later",
        )
        .fix("add psi=1 to the kernel's command line, and boot"),
    }
}

/// The first two numbers of a release.
fn release(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn kernel(facts: &DoctorFacts) -> Finding {
    let check = "kernel";
    let text = match known(check, &facts.kernel, "") {
        Err(finding) => return *finding,
        Ok(text) => text,
    };
    let Some(version) = release(text) else {
        let text = format!("cannot parse the kernel release {text:?}");
        return Finding::new(check, Severity::Unknown, text);
    };
    let lacks = [
        (RECLAIM, "memory.reclaim, which the action reclaim writes to (5.19)"),
        (CACHESTAT, "cachestat(2), with which evict_checkpoint measures the cache (6.5)"),
    ];
    let lacking: Vec<&str> =
        lacks.iter().filter(|(since, _)| version < *since).map(|(_, what)| *what).collect();
    if lacking.is_empty() {
        let more = if version < LOCK_OWNER {
            "; from 6.17 on, a hung-task report names the owner of the lock"
        } else {
            ""
        };
        return Finding::ok(check, format!("{text} supports all actions{more}"));
    }
    let text = format!("{text} lacks {}", lacking.join(", and "));
    Finding::new(check, Severity::Warning, text).fix("a newer kernel of the distribution")
}

fn driver(facts: &DoctorFacts) -> Option<Finding> {
    let check = "driver";
    let text = match known(check, &facts.driver, "no NVIDIA driver is loaded here") {
        Err(finding) => return Some(*finding),
        Ok(text) => text,
    };
    let Some(version) = advice::driver(text) else {
        let text = "cannot parse the version of the driver";
        return Some(Finding::new(check, Severity::Unknown, text));
    };
    let text = format!("driver {} has no known fault", version.text);
    advice::of_node(facts, check).is_empty().then(|| Finding::ok(check, text))
}

/// The release of DGX OS in `/etc/dgx-release`: that of its last update over the air, which appends
/// its lines, else that of its image.
pub fn dgx_release(text: &str) -> Option<&str> {
    let last = |key: &str| text.lines().rev().find_map(|line| line.trim().strip_prefix(key));
    let found = last("DGX_OTA_VERSION=").or_else(|| last("DGX_SWBUILD_VERSION="))?;
    Some(found.trim_matches(['"', '\''])).filter(|release| !release.is_empty())
}

fn daemon(facts: &DoctorFacts) -> Finding {
    let check = "daemon";
    match known(check, &facts.has_daemon, "") {
        Err(finding) => *finding,
        Ok(true) => Finding::ok(check, "the daemon runs and responds"),
        Ok(false) => Finding::new(
            check,
            Severity::Warning,
            "no daemon responds: nothing watches, guards or records this node",
        )
        .fix("`umawarden print unit` prints its unit; or give its --storage.path"),
    }
}

fn kernel_log(facts: &DoctorFacts) -> Vec<Finding> {
    let check = "kernel_log";
    let events = match known(check, &facts.kernel_log, "") {
        Err(mut finding) => {
            finding.severity = Severity::Problem;
            finding.text = format!(
                "cannot read the kernel log: {}; rules about its events are unknown, and \
                 MemoryCollapse uses its other signs",
                finding.text
            );
            let fix = "run as root, or with CAP_SYSLOG; in a container with --device /dev/kmsg";
            return vec![finding.fix(fix)];
        }
        Ok(events) => events,
    };
    let mut findings = Vec::new();
    let reboot = "sudo systemctl reboot; where that hangs: echo s, u, b > /proc/sysrq-trigger";
    for event in events {
        let found = match &event.kind {
            EventKind::Kernel(KernelEvent::UvmFatal) => {
                Some(("the UVM driver has failed until the next boot".to_owned(), reboot))
            }
            EventKind::Kernel(KernelEvent::Xid {
                recovery: Some(Recovery::NodeReboot), ..
            }) => Some(("the driver requires a reboot of this node (Xid 154)".to_owned(), reboot)),
            EventKind::Kernel(KernelEvent::Xid { xid: WRONG_FLAVOUR, .. }) => Some((
                "Xid 169: on GB10 the driver has the wrong flavour of kernel modules".to_owned(),
                "install the flavour of kernel modules that the vendor of this machine ships",
            )),
            EventKind::Kernel(KernelEvent::Xid { xid, .. }) if DEVICE_DEAD.contains(xid) => {
                Some((format!("Xid {xid}: the GPU does not respond"), reboot))
            }
            EventKind::Kernel(lost @ KernelEvent::GpuLost { .. }) => {
                Some((lost.to_string(), reboot))
            }
            EventKind::Kernel(failed @ KernelEvent::GpuInitFailed { .. }) => {
                Some((failed.to_string(), reboot))
            }
            _ => None,
        };
        let Some((text, fix)) = found else { continue };
        if !findings.iter().any(|one: &Finding| one.text == text) {
            findings.push(Finding::new(check, Severity::Problem, text).fix(fix));
        }
    }
    if findings.is_empty() {
        let count = counted(events.len() as u64, "event");
        let text = format!("readable; {count} in this boot, none requires a reboot");
        findings.push(Finding::ok(check, text));
    }
    findings
}

fn rules(facts: &DoctorFacts) -> Finding {
    let check = "rules";
    match known(check, &facts.rules_off, "") {
        Err(finding) => *finding,
        Ok(off) => match off_text(off) {
            None => Finding::ok(check, "all shipped rules are loaded"),
            Some(text) => Finding::new(check, Severity::Warning, text).fix(ADD_SHIPPED),
        },
    }
}

fn lacks(facts: &DoctorFacts) -> Vec<Finding> {
    let check = "permissions";
    let lacks = match known(check, &facts.lacks, "") {
        Err(finding) => return vec![*finding],
        Ok(lacks) => lacks,
    };
    if lacks.is_empty() {
        let text = "this user may do everything that the rules need";
        return vec![Finding::ok(check, text)];
    }
    let finding = |lack: &super::UnmetNeed| {
        let severity = if lack.is_wanted_now { Severity::Problem } else { Severity::Warning };
        let when = if lack.is_wanted_now { "" } else { " (needed in mode enforce)" };
        Finding::new(check, severity, format!("{}{when}", lack.what)).fix(lack.remedy.clone())
    };
    let elsewhere = lack_of_socket(facts);
    lacks.iter().filter(|lack| elsewhere != Some(*lack)).map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::super::Fact;
    use super::*;

    #[test]
    fn versions_are_parsed_from_kernel_release_texts() {
        assert_eq!(release("6.17.0-1004-nvidia"), Some((6, 17)));
        assert_eq!(release("6"), None);
        assert_eq!(release("x.y"), None);
    }

    #[test]
    fn the_last_update_of_dgx_os_names_its_release() {
        let image = "DGX_NAME=\"DGX Spark\"\nDGX_SWBUILD_VERSION=\"7.2.3\"\n";
        assert_eq!(dgx_release(image), Some("7.2.3"));
        let updated = format!("{image}\nDGX_OTA_VERSION=\"7.3.1\"\nDGX_OTA_VERSION=\"7.5.0\"\n");
        assert_eq!(dgx_release(&updated), Some("7.5.0"));
        assert_eq!(dgx_release("DGX_OTA_VERSION=\"\""), None);
    }

    #[test]
    fn an_unknown_fact_is_not_healthy() {
        let finding = known::<()>("x", &Fact::Unknown("no permission".to_owned()), "").unwrap_err();
        assert_eq!(finding.severity, Severity::Unknown);
        assert_eq!(finding.text, "no permission");
    }
}
