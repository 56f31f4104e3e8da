//! The files of the page, inside the binary.
//!
//! `source/build` makes script and style from the sources beside it and from uPlot.

use std::fmt::Write as _;
use std::sync::LazyLock;

use sha2::{Digest as _, Sha256};

/// Bytes of the digest in a name.
const DIGEST_BYTES: usize = 8;

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AssetKind {
    Icon,
    Style,
    Script,
}

impl AssetKind {
    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::Icon => "image/svg+xml",
            Self::Style => "text/css; charset=utf-8",
            Self::Script => "text/javascript; charset=utf-8",
        }
    }
}

/// A file.
#[derive(Clone, Debug)]
pub(super) struct Asset {
    /// Its name, with a digest of its content.
    pub(super) file: String,
    pub(super) kind: AssetKind,
    pub(super) content: &'static [u8],
}

/// All files.
pub(super) static ASSETS: LazyLock<[Asset; 3]> = LazyLock::new(|| {
    [
        asset(AssetKind::Icon, "svg", include_bytes!("assets/page.svg")),
        asset(AssetKind::Style, "css", include_bytes!("assets/page.css")),
        asset(AssetKind::Script, "js", include_bytes!("assets/page.js")),
    ]
});

fn asset(kind: AssetKind, extension: &str, content: &'static [u8]) -> Asset {
    let digest = Sha256::digest(content);
    let mut file = "page-".to_owned();
    for byte in digest.iter().take(DIGEST_BYTES) {
        // A text takes all.
        let _ = write!(file, "{byte:02x}");
    }
    Asset { file: format!("{file}.{extension}"), kind, content }
}
