//! The status page: memory, rules, decisions, sources.

use std::fmt::{self, Write as _};
use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use hyper::{StatusCode, header};
use serde::Deserialize;
use serde_json::Value;

use super::api::read_journal;
use super::holds;
use super::routes::Site;
use super::{Page, PageRequest, QueryError, VERSION};
use crate::model::{
    ADD_SHIPPED, Action, EnginePools, LeaseState, Reading, bytes_text, measured_bytes_text,
    mode_text, off_text, seconds_text,
};
use crate::policy::status::{RuleState, RuleStatus, Status};

/// Starts on the page.
const STARTS: usize = 32;

/// Decisions on the page.
const DECISIONS: usize = 10;
/// A page is not worth a longer wait for a slow disk.
const JOURNAL_WAIT: Duration = Duration::from_secs(1);

/// Nothing is loaded, run or sent. Only the page's own style applies.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";

const STYLE: &str = "\
:root{color-scheme:light dark}\
body{font:15px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;margin:2rem 0 .5rem}\
table{border-collapse:collapse;width:100%}\
th,td{text-align:left;vertical-align:top;padding:.3rem .8rem .3rem 0;border-bottom:1px solid #8884}\
td:last-child{overflow-wrap:anywhere}.number{text-align:right;font-variant-numeric:tabular-nums}\
code{font:13px/1.4 ui-monospace,monospace}\
nav a{margin-right:1rem}small{opacity:.75}pre{overflow-x:auto}\
.firing,.down,.failed{color:light-dark(#b00020,#ff8a80);font-weight:600}\
.pending,.unknown{color:light-dark(#8a5a00,#ffca66);font-weight:600}";

/// The page itself.
pub(super) async fn page(State(site): State<Site>) -> Response {
    let request = PageRequest::newest(DECISIONS);
    let decided = read_journal(&site, |queries| &queries.decisions, request, JOURNAL_WAIT).await;
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
    ];
    match render(&site, &decided) {
        Ok(html) => (StatusCode::OK, headers, html).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

fn render(site: &Site, decided: &Result<Page, QueryError>) -> Result<String, fmt::Error> {
    let status = site.served.status.load_full();
    let uptime = (site.served.uptime)().saturating_sub(status.started.uptime);
    let mut html = String::with_capacity(8192);
    write!(
        html,
        "<!doctype html><html lang=en><meta charset=utf-8>\
         <meta name=viewport content=\"width=device-width\">\
         <title>umawarden</title><style>{STYLE}</style>\
         <h1>umawarden</h1><p>Version {VERSION}, mode <b>{}</b>, up for {}, sampled {}.</p><nav>",
        mode_text(status.mode, &status.enforced),
        seconds_text(uptime),
        status.at.utc.strftime("%F %T UTC"),
    )?;
    for (path, meaning) in site.pages().filter(|(path, _)| *path != "/") {
        // Relative, since a proxy may serve this page below a path.
        let link = path.trim_start_matches('/');
        write!(html, "<a href=\"{link}\" title=\"{meaning}\">{path}</a> ")?;
    }
    html.push_str("</nav>");
    if let Some(failure) = site.served.reload_failure.load().as_ref() {
        write!(
            html,
            "<p class=failed>The reload of {} failed: the previous rules and settings are \
             still in force.</p><pre>{}</pre>",
            failure.at.strftime("%F %T UTC"),
            Escaped(&failure.why),
        )?;
    }
    if let Some(failure) = site.served.access.failure() {
        write!(
            html,
            "<p class=failed>The files of access control have mistakes since {}: the previous ones \
             are still in force.</p><pre>{}</pre>",
            failure.at.strftime("%F %T UTC"),
            Escaped(&failure.why),
        )?;
    }
    holds::page(&mut html, &status)?;
    memory(&mut html, &status)?;
    starts(&mut html, &status)?;
    decisions(&mut html, decided)?;
    rules(&mut html, &status)?;
    sources(&mut html, &status)?;
    html.push_str("</html>\n");
    Ok(html)
}

/// The first series of the page, and their captions.
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

fn memory(html: &mut String, status: &Status) -> fmt::Result {
    html.push_str("<h2>Memory</h2><table>");
    for (series, meaning) in MEMORY {
        let at = status.series.iter().position(|key| key.to_string() == series);
        let reading = at.and_then(|at| status.values.get(at)).copied();
        let text = match reading {
            Some(Reading::Value(bytes)) => measured_bytes_text(bytes),
            Some(Reading::Failed) => "read failed".to_owned(),
            Some(Reading::Unsupported) | None => "unsupported".to_owned(),
        };
        write!(html, "<tr><td>{meaning}<td class=number>{text}</tr>")?;
    }
    html.push_str("</table>");
    pools(html, status)?;
    account(html, status)
}

/// Starts that have reserved memory or wait for it, where there are any.
fn starts(html: &mut String, status: &Status) -> fmt::Result {
    if status.leases.is_empty() {
        return Ok(());
    }
    let now = status.at.uptime;
    let since = |then: Duration| seconds_text(now.saturating_sub(then));
    html.push_str(
        "<h2>Starts</h2><table><tr><th>start<th>priority<th>memory<th>since<th>state</tr>",
    );
    for lease in status.leases.iter().take(STARTS) {
        let request = &lease.request;
        let (then, class, text) = match &lease.state {
            LeaseState::Granted { at, .. } => (*at, "", "has reserved it".to_owned()),
            LeaseState::Waiting { is_grantable: true, .. } => {
                (lease.since, "pending", "waits for other nodes".to_owned())
            }
            LeaseState::Waiting { reasons, .. } => {
                (lease.since, "pending", format!("waits: {}", reasons.join("; ")))
            }
        };
        write!(
            html,
            "<tr><td>{}<td class=number>{}<td class=number>{}<td class=number>{}\
             <td class={class:?}>{}</tr>",
            Escaped(&request.who),
            request.priority,
            bytes_text(request.need.need_bytes),
            since(then),
            Escaped(&text),
        )?;
    }
    html.push_str("</table>");
    let more = status.leases.len().saturating_sub(STARTS);
    if more > 0 {
        write!(html, "<p>{more} more: <a href=api/v1/leases>all leases</a>.")?;
    }
    Ok(())
}

/// The pools of memory, where there are several.
fn pools(html: &mut String, status: &Status) -> fmt::Result {
    let Some(memory) = status.gate_memory.as_ref() else { return Ok(()) };
    if let EnginePools::Unknown { why } = &memory.engines {
        write!(html, "<p>Where engines put their memory is not known: {}.", Escaped(why))?;
    }
    if !memory.has_gpu_pools() {
        return Ok(());
    }
    html.push_str("<h2>Pools</h2><table><tr><th>pool<th>total<th>free<th>can be had</tr>");
    for pool in &memory.pools {
        let text = |reading: Reading<u64>| match reading {
            Reading::Value(bytes) => bytes_text(bytes),
            Reading::Failed => "read failed".to_owned(),
            Reading::Unsupported => "unsupported".to_owned(),
        };
        write!(html, "<tr><td>{}", Escaped(&pool.to_string()))?;
        for reading in [pool.memory.total, pool.memory.free, pool.obtainable] {
            write!(html, "<td class=number>{}", text(reading))?;
        }
        html.push_str("</tr>");
    }
    html.push_str("</table>");
    Ok(())
}

/// Who took memory lately, and the evidence.
fn account(html: &mut String, status: &Status) -> fmt::Result {
    let account = &status.account;
    let grown = bytes_text(account.grown_bytes);
    write!(html, "<p>Taken within {} s: {grown}.<ul>", account.window.as_secs())?;
    for entry in &account.entries {
        write!(html, "<li>{}", Escaped(&entry.to_string()))?;
    }
    html.push_str("</ul>");
    Ok(())
}

/// Rules, firing and unknown ones first.
fn rules(html: &mut String, status: &Status) -> fmt::Result {
    html.push_str("<h2>Rules</h2>");
    if let Some(text) = off_text(&status.shipped_off) {
        write!(html, "<p class=unknown>{}: {ADD_SHIPPED}.", Escaped(&text))?;
    }
    if status.rules.is_empty() {
        html.push_str("<p>No rules are loaded.</p>");
        return Ok(());
    }
    html.push_str("<table><tr><th>Rule<th>State<th>Mode<th>Condition</tr>");
    let mut rules: Vec<&RuleStatus> = status.rules.iter().collect();
    rules.sort_by_key(|rule| rule.state == RuleState::Inactive);
    for rule in rules {
        let state = rule.state.name();
        write!(
            html,
            "<tr><td>{}/{}<td class={state}>{state}<td>{}<td><code>{}</code>",
            Escaped(&rule.rule.group),
            Escaped(&rule.rule.alert),
            rule.mode.name(),
            Escaped(&rule.expr),
        )?;
        remarks(html, rule)?;
        html.push_str("</tr>");
    }
    html.push_str("</table>");
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

fn decisions(html: &mut String, decided: &Result<Page, QueryError>) -> fmt::Result {
    html.push_str("<h2>Latest decisions</h2>");
    let page = match decided {
        Ok(page) if page.items.is_empty() => {
            html.push_str("<p>No decision yet.</p>");
            return Ok(());
        }
        Ok(page) => page,
        Err(error) => return write!(html, "<p class=failed>{}</p>", Escaped(&error.to_string())),
    };
    html.push_str("<table><tr><th>When<th>Rule<th>Decision<th>Action<th>Outcome</tr>");
    for item in &page.items {
        let rule = match &item["rule"] {
            Value::Object(rule) => {
                let part = |name| rule.get(name).map(plain).unwrap_or_default();
                format!("{}/{}", part("group"), part("alert"))
            }
            other => plain(other),
        };
        let decision = format!("{} {}", plain(&item["decision"]), plain(&item["reason"]));
        write!(
            html,
            "<tr><td>{}<td>{}<td>{} <small>{}</small><td>{}<td>{}</tr>",
            Escaped(&plain(item.pointer("/at/utc").unwrap_or(&item["at"]))),
            Escaped(&rule),
            Escaped(decision.trim()),
            Escaped(&plain(&item["mode"])),
            Escaped(&action(&item["action"])),
            Escaped(&outcome(&item["outcome"])),
        )?;
    }
    html.push_str("</table>");
    Ok(())
}

fn sources(html: &mut String, status: &Status) -> fmt::Result {
    html.push_str("<h2>Sources</h2><table><tr><th>Source<th>State<th>Remark</tr>");
    for source in status.sources.iter() {
        let state = if source.up { "up" } else { "down" };
        let detail = source.detail.as_deref().unwrap_or_default();
        write!(
            html,
            "<tr><td>{}<td class={state}>{state}<td>{}</tr>",
            source.source.name(),
            Escaped(detail),
        )?;
    }
    html.push_str("</table>");
    Ok(())
}

/// An action as text. One of another version is shown as JSON.
fn action(value: &Value) -> String {
    Action::deserialize(value).map_or_else(|_| plain(value), |action| action.to_string())
}

/// The result of an action, and its reason.
fn outcome(value: &Value) -> String {
    let Some(result) = value.get("result") else { return plain(value) };
    let result = plain(result).replace('_', " ");
    match value.get("detail") {
        Some(detail) => format!("{result}: {}", plain(detail)),
        None => result,
    }
}

/// A JSON value as text.
fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Text escaped for HTML, with invisible characters made visible: labels of alerts may be hostile.
pub(super) struct Escaped<'a>(pub(super) &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '&' => f.write_str("&amp;"),
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '"' => f.write_str("&quot;"),
            '\'' => f.write_str("&#39;"),
            '\n' | '\t' => f.write_char(c),
            c if c.is_control() || is_unseen(c) => write!(f, "{}", c.escape_default()),
            other => f.write_char(other),
        })
    }
}

/// Characters that change the direction of text or have no width.
fn is_unseen(c: char) -> bool {
    matches!(
        c,
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
    )
}
