//! Reads a model's folder.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::Context as _;
use clap::ValueEnum;

use crate::files::open_regular;
use crate::fit::KvToken;
use crate::parse::model_config::{KvShape, MOST_BYTES};

/// Formats of weights, in the order of preference of engines.
const KINDS: [&str; 3] = ["safetensors", "gguf", "bin"];

/// The type of numbers in the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum KvCacheType {
    /// The type of the model.
    Auto,
    /// 8 bits.
    Fp8,
}

/// What the folder has.
#[derive(Debug)]
pub(super) struct ModelFolder {
    /// The total size of its files of weights.
    pub(super) weights_bytes: u64,
    shape: Result<KvShape, String>,
}

impl ModelFolder {
    /// The KV cache of a token.
    pub(super) fn kv_token(&self, kept_as: KvCacheType) -> anyhow::Result<KvToken> {
        let shape = self.shape.as_ref().map_err(|error| {
            anyhow::anyhow!("{error}: give the KV cache of a token with --kv-per-token SIZE")
        })?;
        let element = match kept_as {
            KvCacheType::Auto => shape.element_bytes,
            KvCacheType::Fp8 => 1,
        };
        Ok(KvToken { bytes: shape.elements.saturating_mul(element), parts: shape.parts })
    }
}

/// Reads the folder.
///
/// # Errors
/// It cannot be read, or has no weights.
pub(super) fn read_folder(folder: &Path) -> anyhow::Result<ModelFolder> {
    let weights_bytes = weights(folder)?;
    let config = folder.join("config.json");
    let text = read(&config).map_err(|error| error.to_string());
    let shape = text.and_then(|text| KvShape::read(&text));
    let shape = shape.map_err(|error| format!("{}: {error}", config.display()));
    Ok(ModelFolder { weights_bytes, shape })
}

fn read(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    open_regular(path)?.take(MOST_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

/// The total size of the files of weights. A file with several names counts once.
fn weights(folder: &Path) -> anyhow::Result<u64> {
    let listed = fs::read_dir(folder)
        .with_context(|| format!("cannot read the model's folder {}", folder.display()))?;
    let mut files = Vec::new();
    for entry in listed {
        let path = entry.with_context(|| format!("cannot list {}", folder.display()))?.path();
        let kind = path.extension().and_then(|kind| kind.to_str());
        if let Some(kind) = kind.and_then(|kind| KINDS.iter().position(|known| *known == kind)) {
            // A broken link is an incomplete download.
            let metadata =
                fs::metadata(&path).with_context(|| format!("cannot read {}", path.display()))?;
            files.push((kind, metadata));
        }
    }
    let kind = files.iter().map(|(kind, _)| *kind).min().with_context(|| {
        format!(
            "{} has no *.safetensors, *.gguf or *.bin: name the folder that has them, or write \
             --weights SIZE",
            folder.display()
        )
    })?;
    let mut seen = BTreeSet::new();
    let files = files.iter().filter(|(of, metadata)| *of == kind && metadata.is_file());
    let once = files.filter(|(_, metadata)| seen.insert((metadata.dev(), metadata.ino())));
    Ok(once.map(|(_, metadata)| metadata.len()).sum())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn files_count_once_and_other_formats_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        assert!(
            read_folder(folder.path()).unwrap_err().to_string().contains("or write --weights SIZE")
        );
        fs::write(path("a.safetensors"), [0; 1000]).unwrap();
        symlink(path("a.safetensors"), path("again.safetensors")).unwrap();
        fs::write(path("b.safetensors"), [0; 500]).unwrap();
        fs::write(path("old.bin"), [0; 9000]).unwrap();
        fs::write(path("config.json"), "{").unwrap();
        let model = read_folder(folder.path()).unwrap();
        assert_eq!(model.weights_bytes, 1500);
        let error = model.kv_token(KvCacheType::Auto).unwrap_err().to_string();
        assert!(error.contains("config.json: EOF") && error.contains("--kv-per-token"), "{error}");
        symlink("gone", path("c.safetensors")).unwrap();
        let error = read_folder(folder.path()).unwrap_err().to_string();
        assert!(error.ends_with("c.safetensors"), "{error}");
    }
}
