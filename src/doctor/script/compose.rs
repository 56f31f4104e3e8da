//! The services of a Compose file.

use super::expand::Context;
use super::lexer::{Item, lines, quoted};
use super::{ScriptCommand, base_name, placed};
use crate::config::mistake::SourceText;
use crate::config::yaml::{Content, YamlNode, parse};

/// The names that `docker compose` searches for.
pub(super) const USUAL: [&str; 4] =
    ["compose.yaml", "compose.yml", "docker-compose.yml", "docker-compose.yaml"];

/// Further services are ignored.
const MOST_SERVICES: usize = 64;

/// The file of a command that starts services, if it names one. `None` for another command.
pub(super) fn file(words: &[String]) -> Option<Option<&str>> {
    let program = base_name(words.first()?);
    let behind = match program {
        "docker-compose" | "podman-compose" => 1,
        "docker" | "podman" | "nerdctl" if words.get(1)? == "compose" => 2,
        _ => return None,
    };
    let words = words.get(behind..)?;
    let starts = |word: &String| matches!(&**word, "up" | "run" | "start" | "restart");
    words.iter().any(starts).then_some(())?;
    let named = words.iter().enumerate().find_map(|(at, word)| match word.as_str() {
        "-f" | "--file" => words.get(at + 1).map(String::as_str),
        _ => word.strip_prefix("--file="),
    });
    Some(named)
}

/// Each service as `docker run` with its variables, image and command.
pub(super) fn commands(
    name: &str,
    text: &str,
    context: &Context,
) -> Result<Vec<ScriptCommand>, String> {
    let root = parse(&SourceText::new(name, text))
        .map_err(|mistake| format!("{name}: line {}: {}", mistake.line, mistake.message))?;
    let Some(Content::Map(services)) = child(&root, "services").map(|node| &node.content) else {
        return Err(format!("{name} has no services"));
    };
    let services = services.iter().take(MOST_SERVICES);
    Ok(services.map(|(_, service)| command(name, service, context)).collect())
}

fn child<'n>(node: &'n YamlNode, key: &str) -> Option<&'n YamlNode> {
    let Content::Map(entries) = &node.content else { return None };
    entries.iter().find(|(name, _)| name.text() == Some(key)).map(|(_, value)| &**value)
}

fn command(name: &str, service: &YamlNode, context: &Context) -> ScriptCommand {
    let mut unseen = Vec::new();
    let mut words = vec!["docker".to_owned(), "run".to_owned()];
    for variable in environment(child(service, "environment")) {
        let value = context.expand(&quoted(&variable), &mut unseen).join(" ");
        words.extend(["-e".to_owned(), value]);
    }
    unseen.clear();
    for key in ["image", "entrypoint", "command"] {
        let Some(node) = child(service, key) else { continue };
        match &node.content {
            Content::List(entries) => {
                for text in entries.iter().filter_map(|entry| entry.text()) {
                    words.push(context.expand(&quoted(text), &mut unseen).join(" "));
                }
            }
            Content::Scalar(scalar) => {
                // A line break within a text is a blank.
                for line in lines(&scalar.text.replace('\n', " ")) {
                    for item in line.items {
                        if let Item::Word(word) = item {
                            words.extend(context.expand(&word, &mut unseen));
                        }
                    }
                }
            }
            Content::Null | Content::Map(_) => {}
        }
    }
    ScriptCommand { words, unseen: placed(&unseen, name), is_container: true }
}

/// `NAME: value` and `- NAME=value`.
fn environment(node: Option<&YamlNode>) -> Vec<String> {
    match node.map(|node| &node.content) {
        Some(Content::List(entries)) => {
            entries.iter().filter_map(|entry| entry.text()).map(str::to_owned).collect()
        }
        Some(Content::Map(entries)) => {
            let pair = |(name, value): &(std::sync::Arc<YamlNode>, std::sync::Arc<YamlNode>)| {
                Some(format!("{}={}", name.text()?, value.text().unwrap_or_default()))
            };
            entries.iter().filter_map(pair).collect()
        }
        _ => Vec::new(),
    }
}
