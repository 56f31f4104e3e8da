//! What a model's folder tells.

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

/// How weights are kept, in the order in which engines look for them.
const KINDS: [&str; 3] = ["safetensors", "gguf", "bin"];

/// What the engine keeps of each number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum KvCacheType {
    /// What the model itself reckons in.
    Auto,
    /// 8 bits.
    Fp8,
}

/// What the folder tells.
#[derive(Debug)]
pub(super) struct Told {
    /// Of its files.
    pub(super) weights_bytes: u64,
    shape: Result<KvShape, String>,
}

impl Told {
    /// How much KV cache a token takes.
    pub(super) fn kv_token(&self, kept_as: KvCacheType) -> anyhow::Result<KvToken> {
        let shape = self.shape.as_ref().map_err(|error| {
            anyhow::anyhow!(
                "{error}: say how much KV cache a token takes, with --kv-per-token SIZE"
            )
        })?;
        let element = match kept_as {
            KvCacheType::Auto => shape.element_bytes,
            KvCacheType::Fp8 => 1,
        };
        Ok(KvToken { bytes: shape.elements.saturating_mul(element), parts: shape.parts })
    }
}

/// Looks into it.
///
/// # Errors
/// It cannot be read, or holds no weights.
pub(super) fn look(folder: &Path) -> anyhow::Result<Told> {
    let weights_bytes = weights(folder)?;
    let config = folder.join("config.json");
    let text = read(&config).map_err(|error| error.to_string());
    let shape = text.and_then(|text| KvShape::read(&text));
    let shape = shape.map_err(|error| format!("{}: {error}", config.display()));
    Ok(Told { weights_bytes, shape })
}

fn read(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    open_regular(path)?.take(MOST_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

/// How large the files are that hold weights; a file with several names counts once.
fn weights(folder: &Path) -> anyhow::Result<u64> {
    let listed = fs::read_dir(folder)
        .with_context(|| format!("cannot look into the model's folder {}", folder.display()))?;
    let mut files = Vec::new();
    for entry in listed {
        let path = entry.with_context(|| format!("cannot list {}", folder.display()))?.path();
        let kind = path.extension().and_then(|kind| kind.to_str());
        if let Some(kind) = kind.and_then(|kind| KINDS.iter().position(|known| *known == kind)) {
            // A link that leads nowhere is a download that is not complete.
            let metadata = fs::metadata(&path)
                .with_context(|| format!("cannot look at {}", path.display()))?;
            files.push((kind, metadata));
        }
    }
    let kind = files.iter().map(|(kind, _)| *kind).min().with_context(|| {
        format!(
            "{} holds no *.safetensors, *.gguf or *.bin: name the folder that does, or write \
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
    fn files_count_once_and_those_of_another_kind_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        assert!(look(folder.path()).unwrap_err().to_string().contains("or write --weights SIZE"));
        fs::write(path("a.safetensors"), [0; 1000]).unwrap();
        symlink(path("a.safetensors"), path("again.safetensors")).unwrap();
        fs::write(path("b.safetensors"), [0; 500]).unwrap();
        fs::write(path("old.bin"), [0; 9000]).unwrap();
        fs::write(path("config.json"), "{").unwrap();
        let told = look(folder.path()).unwrap();
        assert_eq!(told.weights_bytes, 1500);
        let error = told.kv_token(KvCacheType::Auto).unwrap_err().to_string();
        assert!(error.contains("config.json: EOF") && error.contains("--kv-per-token"), "{error}");
        symlink("gone", path("c.safetensors")).unwrap();
        let error = look(folder.path()).unwrap_err().to_string();
        assert!(error.ends_with("c.safetensors"), "{error}");
    }
}
