//! The page of the node: whether it is well, where memory is, what runs, what happened.
//!
//! It is rendered here as plain tables, which work without a script. The script of the page, an
//! asset of its own, fills the same tables anew with each picture, and adds the plot.

mod asset;
mod escape;
mod fold;
mod tables;

use std::fmt::{self, Write as _};
use std::time::Duration;

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use hyper::{StatusCode, Uri, header};

use super::VERSION;
use super::routes::{Site, refusal};
use crate::model::{Picture, seconds_text};

use asset::{ASSETS, Asset, AssetKind};
pub(super) use escape::Escaped;

/// Only our own files, and no text that a name could turn into a script or a style.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'; require-trusted-types-for 'script'; \
                      trusted-types 'none'";

/// The name of an asset has a digest of its content.
const FOREVER: &str = "public, max-age=31536000, immutable";

/// `GET /assets/{file}`.
pub(super) async fn asset(uri: Uri, Path(file): Path<String>) -> Response {
    let Some(found) = ASSETS.iter().find(|asset| asset.file == file) else {
        let text = "there is no such asset: the page is of another version, load it again\n";
        return refusal(&uri, StatusCode::NOT_FOUND, "not_found", text);
    };
    let headers =
        [(header::CONTENT_TYPE, found.kind.content_type()), (header::CACHE_CONTROL, FOREVER)];
    (headers, found.content).into_response()
}

/// The page itself.
pub(super) async fn page(State(site): State<Site>) -> Response {
    site.pictures.find_earlier(&site).await;
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
    ];
    match render(&site) {
        Ok(html) => (StatusCode::OK, headers, html).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

fn render(site: &Site) -> Result<String, fmt::Error> {
    let status = site.served.status.load_full();
    let picture = site.pictures.picture(&site.served, &status);
    let mut html = String::with_capacity(32 * 1024);
    head(&mut html, &picture)?;
    header(&mut html, &picture)?;
    html.push_str("<main id=main>");
    tables::memory(&mut html, &picture.memory)?;
    tables::approvals(&mut html, &picture.approvals)?;
    html.push_str("<div id=now>");
    tables::engines(&mut html, &picture.engines)?;
    tables::waiting(&mut html, &picture.waiting)?;
    tables::nodes(&mut html, &picture.nodes)?;
    html.push_str("</div>");
    tables::happened(&mut html, &picture.happened)?;
    if !site.pictures.knows_earlier() {
        html.push_str(
            "<p class=unknown>What happened before this start is unknown: the journal cannot be \
             read.</p>",
        );
    }
    tables::silences(&mut html, &picture.silences)?;
    fold::rules(&mut html, &status)?;
    fold::memory(&mut html, &status)?;
    fold::sources(&mut html, &status)?;
    html.push_str("</main>");
    footer(&mut html, site)?;
    html.push_str("</html>\n");
    Ok(html)
}

fn head(html: &mut String, picture: &Picture) -> fmt::Result {
    write!(
        html,
        "<!doctype html><html lang=en><head><meta charset=utf-8>\
         <meta name=viewport content=\"width=device-width,initial-scale=1\">\
         <meta name=color-scheme content=\"dark light\"><title>{} – umawarden</title>",
        Escaped(&picture.node)
    )?;
    // Relative, since a proxy may serve this page below a path.
    for Asset { file, kind, .. } in ASSETS.iter() {
        match kind {
            AssetKind::Icon => write!(html, "<link rel=icon href=\"assets/{file}\">")?,
            AssetKind::Style => write!(html, "<link rel=stylesheet href=\"assets/{file}\">")?,
            AssetKind::Script => write!(html, "<script defer src=\"assets/{file}\"></script>")?,
        }
    }
    html.push_str("</head><body><a class=skip href=\"#main\">Skip to the content</a>");
    Ok(())
}

fn header(html: &mut String, picture: &Picture) -> fmt::Result {
    let level = picture.well.level;
    let word = tables::level_word(level);
    write!(
        html,
        "<header><h1>{}</h1><div id=well class=\"well {}\" role=status><strong>{word}</strong><ul>",
        Escaped(&picture.node),
        level.name(),
    )?;
    for reason in &picture.well.reasons {
        write!(html, "<li>{}</li>", Escaped(reason))?;
    }
    html.push_str("</ul></div><p id=notes>");
    write!(html, "{}</p><dl id=facts>", Escaped(&picture.well.notes.join("; ")))?;
    let machine = &picture.machine;
    let unknown = || "unknown".to_owned();
    let facts = [
        ("Machine", machine.model.clone().unwrap_or_else(unknown)),
        ("Memory", machine.memory_bytes.map_or_else(unknown, tables::gib)),
        ("GPU", machine.gpu.clone().unwrap_or_else(unknown)),
        ("Mode", picture.mode_text.clone()),
        ("Running for", seconds_text(Duration::from_secs_f64(picture.uptime_seconds.max(0.0)))),
        ("Version", VERSION.to_owned()),
    ];
    for (name, value) in facts {
        write!(html, "<div><dt>{name}</dt><dd>{}</dd></div>", Escaped(&value))?;
    }
    write!(html, "<div><dt>Sampled</dt><dd id=sampled>")?;
    tables::time(html, picture.at)?;
    html.push_str("</dd></div></dl><p id=link role=status></p></header>");
    Ok(())
}

/// The list of the API.
fn footer(html: &mut String, site: &Site) -> fmt::Result {
    html.push_str("<footer><h2>API</h2><ul class=api>");
    for (path, meaning) in site.pages().filter(|(path, _)| *path != "/") {
        let link = path.trim_start_matches('/');
        write!(html, "<li><a href=\"{link}\">{path}</a> {}</li>", Escaped(meaning))?;
    }
    html.push_str("</ul></footer></body>");
    Ok(())
}
