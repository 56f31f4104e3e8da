//! Prometheus' files of targets (`file_sd_configs`), in YAML or JSON.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;

use crate::model::{NODE_LABEL, PeerAddress};

/// Targets of a file that are read. The rest is left out and reported.
pub const MOST_TARGETS: usize = 10_000;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TargetGroup {
    #[serde(default)]
    targets: Vec<String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

/// Reads the targets of a file, each under its label `node` if it has one.
///
/// # Errors
/// Says what is wrong, with line and column where they are known.
pub fn targets(text: &str, is_json: bool) -> Result<Vec<PeerAddress>, String> {
    let groups: Vec<TargetGroup> = match is_json {
        true => serde_json::from_str(text).map_err(|error| error.to_string())?,
        // As one is for a moment that is being written.
        false if text.trim().is_empty() => {
            return Err("it is empty: write [] where there are no nodes".to_owned());
        }
        false => serde_saphyr::from_str(text).map_err(|error| first_line(&error.to_string()))?,
    };
    let mut found: Vec<PeerAddress> = Vec::new();
    for TargetGroup { targets, labels } in groups {
        let is_alone = targets.len() == 1;
        // One name for several nodes is none.
        let name = labels.get(NODE_LABEL).filter(|name| is_alone && is_fine(name));
        for target in targets {
            let address: PeerAddress = target.parse()?;
            if found.len() >= MOST_TARGETS {
                return Err(format!("it names more than {MOST_TARGETS} targets"));
            }
            found.push(match name {
                Some(name) => address.named(Arc::from(name.as_str())),
                None => address,
            });
        }
    }
    Ok(found)
}

fn is_fine(name: &str) -> bool {
    !name.trim().is_empty() && name.len() <= 255 && !name.chars().any(char::is_control)
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().chars().take(300).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str, is_json: bool) -> Vec<(String, String)> {
        let found = targets(text, is_json).unwrap();
        found.iter().map(|peer| (peer.to_string(), peer.origin().to_owned())).collect()
    }

    #[test]
    fn yaml_and_json_give_the_same_targets() {
        let yaml = "- targets: [spark-2, '10.0.0.3:80']\n  labels: {job: a}\n\
                    - targets: [10.0.0.4]\n  labels: {node: four}\n";
        let json = r#"[{"targets": ["spark-2", "10.0.0.3:80"], "labels": {"job": "a"}},
                       {"targets": ["10.0.0.4"], "labels": {"node": "four"}}]"#;
        let expected = [
            ("spark-2", "http://spark-2:9942"),
            ("10.0.0.3:80", "http://10.0.0.3:80"),
            ("four", "http://10.0.0.4:9942"),
        ];
        let expected = expected.map(|(name, origin)| (name.to_owned(), origin.to_owned()));
        assert_eq!(read(yaml, false), expected);
        assert_eq!(read(json, true), expected);
        assert!(read("[]", false).is_empty() && read("[]", true).is_empty());
        assert!(targets("", false).is_err(), "as it is while it is being written");
    }

    #[test]
    fn mistakes_are_reported_with_their_place() {
        let error = |text: &str, is_json| targets(text, is_json).unwrap_err();
        assert!(error("[{\"targets\": 3}]", true).contains("line 1 column"));
        assert!(error("", true).contains("EOF"));
        assert!(
            error("- targets: 3\n", false).contains("line 1"),
            "{}",
            error("- targets: 3\n", false)
        );
        assert!(error("- target: [a]\n", false).contains("target"));
        assert!(error("- targets: ['http://a']\n", false).contains("is no host"));
    }

    proptest! {
        #[test]
        fn arbitrary_text_is_harmless(
            text in "(- |targets|labels|: |\\[|\\]|\\{|\\}|a|\n|  |\"|&x|\\*x){0,40}",
        ) {
            for is_json in [true, false] {
                let _either = targets(&text, is_json);
            }
        }
    }
}
