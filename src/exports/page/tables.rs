//! The tables that the script of the page keeps current.
//!
//! A table has the same columns here and in the script. Times are in UTC here; the script shows
//! them in the visitor's zone.

use std::fmt::{self, Write as _};

use jiff::Timestamp;

use super::Escaped;
use crate::model::{
    ApprovalPicture, EnginePicture, MemoryPicture, NodeHealthLevel, NodePicture, NodeState,
    RecentEvent, SilencePicture, WaitKind, WaitingStart,
};

const GIB: f64 = 1_073_741_824.0;

/// A size in GiB, as `gib` of the script writes it when it updates a cell. Unlike
/// [`crate::model::bytes_text`] it has one unit, so that a column can be compared at a glance, and
/// two digits below 10 GiB, so that small parts do not all read 0.0.
#[expect(clippy::cast_precision_loss, reason = "two digits after the point are shown")]
pub(super) fn gib(bytes: u64) -> String {
    let value = bytes as f64 / GIB;
    let digits = if value < 10.0 { 2 } else { 1 };
    format!("{value:.digits$} GiB")
}

fn size(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "unknown".to_owned(), gib)
}

/// A time, with its exact form for the script.
pub(super) fn time(html: &mut String, at: Timestamp) -> fmt::Result {
    write!(html, "<time datetime=\"{at:.3}\">{}</time>", at.strftime("%F %T UTC"))
}

/// Whether a node is well, for people.
pub(super) fn level_word(level: NodeHealthLevel) -> &'static str {
    match level {
        NodeHealthLevel::Well => "Well",
        NodeHealthLevel::Unknown => "Unknown",
        NodeHealthLevel::Warning => "Needs attention",
        NodeHealthLevel::Critical => "In trouble",
    }
}

/// A table with these columns; `minor` ones are left out where the page is narrow.
fn begin(html: &mut String, id: &str, title: &str, columns: &[(&str, bool)]) -> fmt::Result {
    write!(
        html,
        "<section id={id} aria-labelledby={id}-title><h2 id={id}-title>{title}</h2>\
         <table><thead><tr>"
    )?;
    for (name, is_minor) in columns {
        let class = if *is_minor { " class=minor" } else { "" };
        write!(html, "<th scope=col{class}>{name}</th>")?;
    }
    html.push_str("</tr></thead><tbody>");
    Ok(())
}

const END: &str = "</tbody></table></section>";

/// Where memory is.
pub(super) fn memory(html: &mut String, memory: &MemoryPicture) -> fmt::Result {
    let columns = [("Part", false), ("Size", false), ("Share", true)];
    begin(html, "memory", "Where memory is", &columns)?;
    #[expect(clippy::cast_precision_loss, reason = "whole percents are shown")]
    let share = |bytes: u64| match memory.total_bytes {
        Some(total @ 1..) => format!("{:.0} %", 100.0 * bytes as f64 / total as f64),
        _ => String::new(),
    };
    for part in &memory.parts {
        write!(
            html,
            "<tr><th scope=row>{}</th><td class=number>{}</td>\
             <td class=\"number minor\">{}</td></tr>",
            Escaped(&part.name),
            gib(part.bytes),
            share(part.bytes),
        )?;
    }
    html.push_str("</tbody></table>");
    write!(
        html,
        "<p id=levels>All {}; available, by the kernel's estimate, {}; reserve that the kernel \
         keeps free {}.</p><ul id=remarks>",
        size(memory.total_bytes),
        size(memory.available_bytes),
        size(memory.reserve_bytes),
    )?;
    for remark in &memory.remarks {
        write!(html, "<li>{}</li>", Escaped(remark))?;
    }
    html.push_str("</ul></section>");
    Ok(())
}

/// What needs a person.
pub(super) fn approvals(html: &mut String, approvals: &[ApprovalPicture]) -> fmt::Result {
    let columns = [("What", false), ("Why", true), ("Until", true), ("Answer", false)];
    begin(html, "approvals", "Needs a person", &columns)?;
    for asked in approvals {
        write!(
            html,
            "<tr><th scope=row>{} <small>{}</small></th><td class=minor>{}</td><td class=minor>",
            Escaped(&asked.what),
            Escaped(&asked.rule),
            Escaped(&asked.why),
        )?;
        time(html, asked.goes_ahead.unwrap_or(asked.lapses))?;
        html.push_str("</td><td>");
        match (&asked.answer, asked.goes_ahead) {
            (Some(answer), _) => write!(html, "{}", Escaped(answer))?,
            (None, Some(due)) => {
                html.push_str("goes ahead at ");
                time(html, due)?;
                write!(html, " unless: <code>umawarden deny {}</code>", asked.decision)?;
            }
            (None, None) => write!(html, "<code>umawarden approve {}</code>", asked.decision)?,
        }
        html.push_str("</td></tr>");
    }
    if approvals.is_empty() {
        html.push_str("<tr><td colspan=4>Nothing waits for a person.</td></tr>");
    }
    html.push_str(END);
    Ok(())
}

/// Queue and KV cache of an engine; empty where they are unknown.
fn load(engine: &EnginePicture) -> (String, String) {
    let queue = engine.queue.map_or_else(String::new, |queue| {
        let text = |number: Option<u64>| number.map_or("?".to_owned(), |n| n.to_string());
        format!("{} run, {} wait", text(queue.running), text(queue.waiting))
    });
    let cache = engine.kv_cache_used.map(|used| format!("{:.0} %", 100.0 * used));
    (queue, cache.unwrap_or_default())
}

/// Writes the table of engines: phase, memory, queue, KV cache. Where the page is narrow, the last
/// two are in the cell of the phase.
pub(super) fn engines(html: &mut String, engines: &[EnginePicture]) -> fmt::Result {
    let columns = [
        ("Engine", false),
        ("Phase", false),
        ("Memory", false),
        ("Queue", true),
        ("KV cache", true),
    ];
    begin(html, "engines", "What runs", &columns)?;
    for engine in engines {
        let about = engine.model.as_deref().unwrap_or(engine.kind.name());
        let pod = engine.pod.as_ref().map(|pod| format!(", pod {pod}")).unwrap_or_default();
        write!(
            html,
            "<tr><th scope=row>{} <small>{}{}</small></th><td>{}",
            Escaped(&engine.name),
            Escaped(about),
            Escaped(&pod),
            engine.phase,
        )?;
        if let (Some(done), Some(left)) = (engine.progress, engine.seconds_left) {
            write!(html, " {:.0} %, {left:.0} s left", 100.0 * done)?;
        }
        write!(html, "<br><small>{}</small>", Escaped(engine.note.as_deref().unwrap_or_default()))?;
        let (queue, cache) = load(engine);
        if !(queue.is_empty() && cache.is_empty()) {
            let comma = if queue.is_empty() || cache.is_empty() { "" } else { ", " };
            let of_cache = if cache.is_empty() { "" } else { "KV " };
            write!(html, " <small class=narrow>{queue}{comma}{of_cache}{cache}</small>")?;
        }
        write!(
            html,
            "</td><td class=number>{}</td><td class=minor>{queue}</td>\
             <td class=\"number minor\">{cache}</td></tr>",
            engine.memory_bytes.map_or_else(String::new, gib),
        )?;
    }
    if engines.is_empty() {
        html.push_str("<tr><td colspan=5>No inference engine is found.</td></tr>");
    }
    html.push_str(END);
    Ok(())
}

/// What happened, and what would have been done.
pub(super) fn happened(html: &mut String, happened: &[RecentEvent]) -> fmt::Result {
    let columns = [("When", false), ("What", false)];
    begin(html, "happened", "What happened", &columns)?;
    for entry in happened {
        html.push_str("<tr><td class=when>");
        time(html, entry.at)?;
        let link = match (entry.id, &entry.rule) {
            (Some(id), _) => format!("api/v1/explain?decision={id}"),
            // A rule's name in a link would have to be encoded; the script does that.
            _ => String::new(),
        };
        write!(html, "</td><td class={}>", entry.level.name())?;
        match link.is_empty() {
            true => write!(html, "{}", Escaped(&entry.text))?,
            false => write!(html, "<a href=\"{link}\">{}</a>", Escaped(&entry.text))?,
        }
        if entry.times > 1 {
            write!(html, " <small>{} times</small>", entry.times)?;
        }
        html.push_str("</td></tr>");
    }
    if happened.is_empty() {
        html.push_str("<tr><td colspan=2>Nothing has happened yet.</td></tr>");
    }
    html.push_str(END);
    Ok(())
}

/// Writes the table of starts and restarts that wait for memory.
pub(super) fn waiting(html: &mut String, waiting: &[WaitingStart]) -> fmt::Result {
    let columns = [("Who", false), ("Needs", false), ("Since", true), ("Why", false)];
    begin(html, "waiting", "Who waits for memory", &columns)?;
    for one in waiting {
        let kind = match one.kind {
            WaitKind::Start => "start",
            WaitKind::Restart => "restart",
        };
        write!(
            html,
            "<tr><th scope=row>{} <small>{kind}</small></th><td class=number>{}</td>\
             <td class=minor>",
            Escaped(&one.who),
            size(one.needs_bytes),
        )?;
        time(html, one.since)?;
        write!(html, "</td><td>{}", Escaped(&one.reason))?;
        if let Some(left) = one.seconds_left {
            write!(html, "<small>, about {left:.0} s left</small>")?;
        }
        if !one.behind.is_empty() {
            write!(html, "<small>, behind {}</small>", Escaped(&one.behind.join(", ")))?;
        }
        html.push_str("</td></tr>");
    }
    if waiting.is_empty() {
        html.push_str("<tr><td colspan=4>Nobody waits.</td></tr>");
    }
    html.push_str(END);
    Ok(())
}

/// Writes the table of silences.
pub(super) fn silences(html: &mut String, silences: &[SilencePicture]) -> fmt::Result {
    let columns = [("Rules", false), ("Until", false), ("By", true), ("Why", true)];
    begin(html, "silences", "Silences", &columns)?;
    for silence in silences {
        write!(
            html,
            "<tr><th scope=row>{} <small>#{}</small></th><td class=when>",
            Escaped(&silence.rules),
            silence.id,
        )?;
        time(html, silence.until)?;
        write!(
            html,
            "</td><td class=minor>{}</td><td class=minor>{}</td></tr>",
            Escaped(&silence.by),
            Escaped(&silence.why),
        )?;
    }
    if silences.is_empty() {
        html.push_str("<tr><td colspan=4>No remedy is silenced.</td></tr>");
    }
    html.push_str(END);
    Ok(())
}

/// The class of the state of a node that is not well.
fn trouble(node: &NodePicture) -> &'static str {
    match node.level {
        None | Some(NodeHealthLevel::Well) => "",
        Some(level) => level.name(),
    }
}

/// The nodes of the cluster. Without a cluster there is one line.
pub(super) fn nodes(html: &mut String, nodes: &[NodePicture]) -> fmt::Result {
    let columns = [("Node", false), ("Available", false), ("Memory", true), ("State", false)];
    begin(html, "nodes", "Nodes", &columns)?;
    for node in nodes {
        let state = match node.state {
            NodeState::Own => "this node",
            NodeState::Answers => "answers",
            NodeState::Unknown => "unknown",
        };
        let weakest = if node.weakest { ", the weakest" } else { "" };
        // A node of an older version does not report its level.
        let level = node.level.map(|level| format!("{}; ", level_word(level))).unwrap_or_default();
        html.push_str("<tr><th scope=row>");
        match &node.url {
            Some(url) => write!(html, "<a href=\"{}\">{}</a>", Escaped(url), Escaped(&node.name))?,
            None => write!(html, "{}", Escaped(&node.name))?,
        }
        write!(
            html,
            "</th><td class=number>{}</td>\
             <td class=\"number minor\">{}</td><td class=\"{}\">{level}{state}{weakest}",
            size(node.available_bytes),
            size(node.total_bytes),
            trouble(node),
        )?;
        if let Some(note) = &node.note {
            write!(html, " <small>{}</small>", Escaped(note))?;
        }
        html.push_str("</td></tr>");
    }
    if nodes.is_empty() {
        html.push_str("<tr><td colspan=4>No cluster is configured.</td></tr>");
    }
    html.push_str(END);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{EngineKind, EnginePhase, Queue};

    #[test]
    fn queue_and_cache_are_also_shown_where_the_page_is_narrow() {
        let mut engine = EnginePicture {
            name: "qwen".to_owned(),
            kind: EngineKind::Vllm,
            model: None,
            pod: None,
            phase: EnginePhase::Serving,
            since: Timestamp::UNIX_EPOCH,
            progress: None,
            seconds_left: None,
            memory_bytes: None,
            queue: Some(Queue { waiting: Some(1), running: Some(3) }),
            kv_cache_used: Some(0.41),
            note: None,
        };
        let short = |engine: &EnginePicture| {
            let mut html = String::new();
            engines(&mut html, std::slice::from_ref(engine)).unwrap();
            let after = html.split_once("<small class=narrow>").map(|(_, after)| after);
            after.and_then(|after| after.split_once('<')).map(|(short, _)| short.to_owned())
        };
        assert_eq!(short(&engine).as_deref(), Some("3 run, 1 wait, KV 41 %"));
        engine.queue = None;
        assert_eq!(short(&engine).as_deref(), Some("KV 41 %"));
        engine.kv_cache_used = None;
        assert_eq!(short(&engine), None);
    }

    #[test]
    fn a_restart_that_backs_off_has_one_sentence_with_one_time_left() {
        let one = WaitingStart {
            who: "vllm".to_owned(),
            needs_bytes: None,
            behind: vec!["qwen".to_owned()],
            since: Timestamp::UNIX_EPOCH,
            kind: WaitKind::Restart,
            reason: "it died 2 times in a row, and waits 8s before a start".to_owned(),
            seconds_left: Some(3.2),
        };
        let mut html = String::new();
        waiting(&mut html, &[one]).unwrap();
        let sentence = "<td>it died 2 times in a row, and waits 8s before a start\
                        <small>, about 3 s left</small><small>, behind qwen</small></td>";
        assert!(html.contains(sentence), "{html}");
    }

    #[test]
    fn a_node_in_trouble_is_marked_and_one_of_an_older_version_answers() {
        let node = |name: &str, level: Option<NodeHealthLevel>| NodePicture {
            name: name.to_owned(),
            state: NodeState::Answers,
            level,
            weakest: false,
            available_bytes: None,
            total_bytes: None,
            note: None,
            url: None,
        };
        let all = [node("a", Some(NodeHealthLevel::Critical)), node("b", None)];
        let mut html = String::new();
        nodes(&mut html, &all).unwrap();
        assert!(html.contains("<td class=\"critical\">In trouble; answers</td>"), "{html}");
        assert!(html.contains("<td class=\"\">answers</td>"), "{html}");
    }
}
