//! The parts of the page that are folded: rules with their expressions, memory in detail, sources.

use std::fmt::{self, Write as _};

use super::Escaped;
use crate::model::{
    ADD_SHIPPED, EnginePools, Reading, bytes_text, counted, measured_bytes_text, off_text,
};
use crate::policy::status::{RuleState, RuleStatus, Status};

fn begin(html: &mut String, id: &str, title: &str, note: &str) -> fmt::Result {
    write!(
        html,
        "<details id={id}><summary><h2>{title}</h2> <small>{}</small></summary>",
        Escaped(note)
    )
}

/// Rules, firing and unknown ones first; their expressions are folded once more.
pub(super) fn rules(html: &mut String, status: &Status) -> fmt::Result {
    let count = |state| status.rules.iter().filter(|rule| rule.state == state).count();
    let notable = RuleState::NOTABLE.map(|state| format!("{} {}", count(state), state.name()));
    let all = counted(status.rules.len() as u64, "rule");
    begin(html, "rules", "Rules", &format!("{all}: {}", notable.join(", ")))?;
    if let Some(text) = off_text(&status.shipped_off) {
        write!(html, "<p class=unknown>{}: {ADD_SHIPPED}.</p>", Escaped(&text))?;
    }
    if status.rules.is_empty() {
        html.push_str("<p>No rules are loaded.</p></details>");
        return Ok(());
    }
    html.push_str(
        "<table><thead><tr><th scope=col>Rule</th><th scope=col>State</th>\
         <th scope=col class=minor>Mode</th></tr></thead><tbody>",
    );
    let mut rules: Vec<&RuleStatus> = status.rules.iter().collect();
    rules.sort_by_key(|rule| rule.state == RuleState::Inactive);
    for rule in rules {
        let state = rule.state.name();
        write!(
            html,
            "<tr><th scope=row>{}/{}",
            Escaped(&rule.rule.group),
            Escaped(&rule.rule.alert)
        )?;
        remarks(html, rule)?;
        write!(
            html,
            "<details><summary>Condition</summary><code>{}</code></details></th>\
             <td class={state}>{state}</td><td class=minor>{}</td></tr>",
            Escaped(&rule.expr),
            rule.mode.name(),
        )?;
    }
    html.push_str("</tbody></table></details>");
    Ok(())
}

fn remarks(html: &mut String, rule: &RuleStatus) -> fmt::Result {
    for alert in &rule.alerts {
        let since = alert.active_since.utc.strftime("%F %T UTC");
        // A pending alert is active before it fires.
        write!(html, "<br><small>{}, active since {since}", alert.state.name())?;
        for (_, text) in &alert.annotations {
            write!(html, ": {}", Escaped(text))?;
        }
        html.push_str("</small>");
    }
    let texts = rule.overridden.iter().map(|text| &**text);
    let texts = texts.chain(rule.unknown.iter().chain(&rule.remedy).map(String::as_str));
    for text in texts {
        write!(html, "<br><small>{}</small>", Escaped(text))?;
    }
    Ok(())
}

/// The first series of the table, and their captions.
const MEMORY: [(&str, &str); 9] = [
    ("uma_memory_total_bytes", "total"),
    ("uma_memory_free_bytes", "free"),
    ("uma_memory_available_bytes", "available, by the kernel's estimate"),
    ("uma_memory_reserve_bytes", "reserve (min_free)"),
    ("uma_memory_headroom_bytes", "free above the low watermark"),
    ("uma_memory_page_cache_bytes{state=\"clean\"}", "page cache, clean"),
    ("uma_memory_page_cache_bytes{state=\"dirty\"}", "page cache, dirty"),
    ("uma_memory_page_cache_bytes{state=\"mapped\"}", "page cache, mapped"),
    ("uma_memory_unaccounted_bytes", "unaccounted: in no counter, for example a driver's"),
];

/// Counters of memory, its pools, and who took it lately.
pub(super) fn memory(html: &mut String, status: &Status) -> fmt::Result {
    begin(html, "counters", "Memory in detail", "counters, pools, who took memory lately")?;
    html.push_str("<table><tbody>");
    for (series, meaning) in MEMORY {
        let at = status.series.iter().position(|key| key.to_string() == series);
        let reading = at.and_then(|at| status.values.get(at)).copied();
        let reading = reading.filter(|reading| !reading.is_end());
        let text = match reading {
            Some(Reading::Value(bytes)) => measured_bytes_text(bytes),
            Some(Reading::Failed) => "read failed".to_owned(),
            Some(Reading::Unsupported) | None => "unsupported".to_owned(),
        };
        write!(html, "<tr><th scope=row>{meaning}</th><td class=number>{text}</td></tr>")?;
    }
    html.push_str("</tbody></table>");
    for reserved in status.reserved.iter() {
        write!(
            html,
            "<p>{} of {} are reserved for {}.</p>",
            bytes_text(reserved.bytes),
            Escaped(&reserved.pool),
            Escaped(&reserved.by.join(", ")),
        )?;
    }
    pools(html, status)?;
    account(html, status)?;
    html.push_str("</details>");
    Ok(())
}

/// The pools of memory, where there are several.
fn pools(html: &mut String, status: &Status) -> fmt::Result {
    let Some(memory) = status.gate_memory.as_ref() else { return Ok(()) };
    if let EnginePools::Unknown { why } = &memory.engines {
        write!(html, "<p>Where engines put their memory is not known: {}.</p>", Escaped(why))?;
    }
    if !memory.has_gpu_pools() {
        return Ok(());
    }
    html.push_str(
        "<h3>Pools</h3><table><thead><tr><th scope=col>Pool</th><th scope=col>Total</th>\
         <th scope=col>Free</th><th scope=col>Can be had</th></tr></thead><tbody>",
    );
    for pool in &memory.pools {
        let text = |reading: Reading<u64>| match reading {
            Reading::Value(bytes) => bytes_text(bytes),
            Reading::Failed => "read failed".to_owned(),
            Reading::Unsupported => "unsupported".to_owned(),
        };
        write!(html, "<tr><th scope=row>{}</th>", Escaped(&pool.to_string()))?;
        for reading in [pool.memory.total, pool.memory.free, pool.obtainable] {
            write!(html, "<td class=number>{}</td>", text(reading))?;
        }
        html.push_str("</tr>");
    }
    html.push_str("</tbody></table>");
    Ok(())
}

/// Who took memory lately, and the evidence.
fn account(html: &mut String, status: &Status) -> fmt::Result {
    let account = &status.account;
    let grown = bytes_text(account.grown_bytes);
    write!(html, "<p>Taken within {} s: {grown}.</p><ul>", account.window.as_secs())?;
    for entry in &account.entries {
        write!(html, "<li>{}</li>", Escaped(&entry.to_string()))?;
    }
    html.push_str("</ul>");
    Ok(())
}

/// How the sources fare.
pub(super) fn sources(html: &mut String, status: &Status) -> fmt::Result {
    let down = status.sources.iter().filter(|source| !source.up).count();
    let all = counted(status.sources.len() as u64, "source");
    begin(html, "sources", "Sources", &format!("{all}, {down} down"))?;
    html.push_str(
        "<table><thead><tr><th scope=col>Source</th><th scope=col>State</th>\
         <th scope=col>Remark</th></tr></thead><tbody>",
    );
    for source in status.sources.iter() {
        let state = if source.up { "up" } else { "down" };
        let detail = source.detail.as_deref().unwrap_or_default();
        write!(
            html,
            "<tr><th scope=row>{}</th><td class={state}>{state}</td><td>{}</td></tr>",
            source.source.name(),
            Escaped(detail),
        )?;
    }
    html.push_str("</tbody></table></details>");
    Ok(())
}
