//! Reads a model's folder, or one file of it.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::Context as _;

use crate::cli::progress::Progress;
use crate::files::open_regular;
use crate::fit::KvCache;
use crate::parse::gguf;
use crate::parse::model_config::{KvShape, MOST_BYTES};
use crate::parse::weight_files::{
    Choice, FoundFile, MOST_INDEX_BYTES, Weights, is_weights, select,
};

/// The most files of a folder.
const MOST_FILES: usize = 1 << 16;

/// The most folders in a hint.
const MOST_HINTS: usize = 4;

/// What the folder has.
#[derive(Debug)]
pub(super) struct ModelFiles {
    /// The files that an engine loads.
    pub(super) weights: Weights,
    /// What the KV cache depends on, or why that is unknown.
    pub(super) shape: Result<KvShape, String>,
}

impl ModelFiles {
    /// The KV cache, with numbers of that type.
    ///
    /// # Errors
    /// The model's description cannot be read.
    pub(super) fn kv_cache(&self, kept_as: &str) -> Result<KvCache, String> {
        let shape = self.shape.as_ref().map_err(|error| {
            format!("{error}: give the KV cache of a token with --kv-per-token SIZE")
        })?;
        let of = |elements: u64| match element_thirty_seconds(kept_as) {
            Some(part) => elements.saturating_mul(part).div_ceil(32),
            None => elements.saturating_mul(shape.element_bytes),
        };
        Ok(KvCache {
            token_bytes: of(shape.full_elements),
            window_token_bytes: of(shape.windowed_elements),
            window_tokens: shape.window_tokens,
            parts: shape.parts,
        })
    }
}

/// The size of a number of the KV cache, in 32nds of a byte. `None`: as the model has it.
/// llama.cpp's types have a scale for 32 numbers.
pub(super) fn element_thirty_seconds(kind: &str) -> Option<u64> {
    Some(match kind {
        kind if kind.starts_with("fp8") => 32,
        "int8" => 32,
        "f32" | "float32" => 128,
        "f16" | "bf16" | "half" | "float16" | "bfloat16" => 64,
        "q8_0" => 34,
        "q5_1" => 24,
        "q5_0" => 22,
        "q4_1" => 20,
        "q4_0" | "iq4_nl" => 18,
        _ => return None,
    })
}

/// Reads the model at a path: a folder, or a file in it.
///
/// # Errors
/// It cannot be read, or which of its files are the weights is not clear.
pub(super) fn read(path: &Path, is_consolidated: bool) -> anyhow::Result<ModelFiles> {
    let metadata = fs::metadata(path).map_err(|error| {
        anyhow::anyhow!(
            "cannot read the model's folder {}: {error}: name a folder of this node with --model, \
             or write --weights SIZE",
            path.display()
        )
    })?;
    let (folder, file) = if metadata.is_dir() {
        (path, None)
    } else {
        let name = path.file_name().and_then(|name| name.to_str());
        anyhow::ensure!(
            metadata.is_file() && name.is_some_and(is_weights),
            "{} is neither a folder nor a file of weights (*.safetensors, *.gguf, *.bin, *.pt)",
            path.display()
        );
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        (parent.unwrap_or(Path::new(".")), name)
    };
    let choice = match file {
        Some(name) => Choice::File(name),
        None if is_consolidated => Choice::Consolidated,
        None => Choice::Usual,
    };
    let found = list(folder)?;
    let index = |name: &str| {
        let path = folder.join(name);
        fs::symlink_metadata(&path).is_ok().then(|| text(&path, MOST_INDEX_BYTES))
    };
    let weights = select(&found, choice, index).map_err(|why| {
        let name = if file.is_some() { "cannot use the file" } else { "cannot use the folder" };
        let hint = if found.is_empty() { hint(folder) } else { String::new() };
        anyhow::anyhow!(
            "{name} {}: {why}: name the folder or the file that has them, or write --weights \
             SIZE{hint}",
            path.display()
        )
    })?;
    let shape = match weights.first.as_deref().filter(|name| name.ends_with(".gguf")) {
        Some(name) => gguf_shape(&folder.join(name)),
        None => config_shape(&folder.join("config.json")),
    };
    Ok(ModelFiles { weights, shape })
}

fn config_shape(path: &Path) -> Result<KvShape, String> {
    let text = text(path, MOST_BYTES)?;
    KvShape::read(&text).map_err(|error| format!("{}: {error}", path.display()))
}

fn gguf_shape(path: &Path) -> Result<KvShape, String> {
    let fault = |error: String| format!("{}: {error}", path.display());
    let mut head = Vec::new();
    let file = open_regular(path).map_err(|error| fault(error.to_string()))?;
    let read = file.take(gguf::HEAD_BYTES).read_to_end(&mut head);
    read.map_err(|error| fault(error.to_string()))?;
    gguf::shape(&head).map_err(fault)
}

/// The files of weights in a folder. Any that is no regular file is a mistake.
fn list(folder: &Path) -> anyhow::Result<Vec<FoundFile>> {
    let listed = fs::read_dir(folder)
        .with_context(|| format!("cannot read the model's folder {}", folder.display()))?;
    let mut files = Vec::new();
    // Each file may be on a slow network; their names come first.
    let entries: Vec<_> = listed.take(MOST_FILES).collect();
    let mut progress = Progress::things("fit --model", "files", entries.len() as u64);
    for entry in entries {
        progress.advance(1);
        let entry = entry.with_context(|| format!("cannot list {}", folder.display()))?;
        let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
        if !is_weights(&name) {
            continue;
        }
        let path = entry.path();
        // A broken link is an incomplete download.
        let metadata = fs::metadata(&path).with_context(|| {
            format!("cannot read {}, which may be an incomplete download", path.display())
        })?;
        if metadata.is_dir() {
            continue;
        }
        anyhow::ensure!(metadata.is_file(), "{} is no regular file", path.display());
        files.push(FoundFile {
            name,
            bytes: metadata.len(),
            identity: (metadata.dev(), metadata.ino()),
        });
    }
    Ok(files)
}

/// Folders below that have weights: many repositories have one for each quantization.
fn hint(folder: &Path) -> String {
    let Ok(listed) = fs::read_dir(folder) else { return String::new() };
    let has_weights = |path: &Path| {
        let files = fs::read_dir(path).into_iter().flatten().flatten().take(MOST_FILES);
        files.into_iter().any(|file| file.file_name().to_str().is_some_and(is_weights))
    };
    let below = listed.flatten().take(MOST_FILES).map(|entry| entry.path());
    let mut below: Vec<String> = below
        .filter(|path| path.is_dir() && has_weights(path))
        .take(MOST_HINTS)
        .map(|path| path.display().to_string())
        .collect();
    below.sort();
    if below.is_empty() { String::new() } else { format!(" (there are {})", below.join(", ")) }
}

/// The text of a file that is not longer than `most` bytes.
fn text(path: &Path, most: u64) -> Result<String, String> {
    let fault = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut text = String::new();
    let file = open_regular(path).map_err(fault)?;
    file.take(most + 1).read_to_string(&mut text).map_err(fault)?;
    if text.len() as u64 > most {
        return Err(format!("{}: it is larger than {} MiB", path.display(), most >> 20));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    fn error(path: &Path) -> String {
        format!("{:#}", read(path, false).unwrap_err())
    }

    #[test]
    fn files_count_once_and_other_formats_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        assert!(error(folder.path()).contains("or write --weights SIZE"));
        assert!(error(&path("nowhere")).contains("name a folder of this node with --model"));
        fs::write(path("a.safetensors"), [0; 1000]).unwrap();
        symlink(path("a.safetensors"), path("again.safetensors")).unwrap();
        fs::write(path("b.safetensors"), [0; 500]).unwrap();
        fs::write(path("old.bin"), [0; 9000]).unwrap();
        fs::write(path("config.json"), "{").unwrap();
        let model = read(folder.path(), false).unwrap();
        assert_eq!((model.weights.bytes, model.weights.largest_bytes), (1500, 1000));
        let error_of_shape = model.kv_cache("auto").unwrap_err();
        assert!(error_of_shape.contains("config.json: EOF"), "{error_of_shape}");
        assert!(error_of_shape.contains("--kv-per-token"), "{error_of_shape}");
        let one = read(&path("b.safetensors"), false).unwrap();
        assert_eq!(one.weights.bytes, 500);
        symlink("gone", path("c.safetensors")).unwrap();
        assert!(error(folder.path()).contains("c.safetensors, which may be an incomplete"));
    }

    #[test]
    fn hostile_files_are_named_and_never_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        symlink("loop.safetensors", path("loop.safetensors")).unwrap();
        let looped = error(folder.path());
        assert!(
            looped.contains("loop.safetensors") && looped.contains("symbolic links"),
            "{looped}"
        );
        fs::remove_file(path("loop.safetensors")).unwrap();
        let _socket = UnixListener::bind(path("x.safetensors")).unwrap();
        assert!(error(folder.path()).contains("x.safetensors is no regular file"));
        fs::remove_file(path("x.safetensors")).unwrap();
        fs::write(path("a.safetensors"), [0; 10]).unwrap();
        let _index = UnixListener::bind(path("model.safetensors.index.json")).unwrap();
        assert!(error(folder.path()).contains("it is a socket; a regular file is needed"));
        fs::remove_file(path("model.safetensors.index.json")).unwrap();
        let long = vec![b' '; usize::try_from(MOST_BYTES).unwrap() + 2];
        fs::write(path("config.json"), long).unwrap();
        let shape = read(folder.path(), false).unwrap().shape.unwrap_err();
        assert!(shape.ends_with("config.json: it is larger than 4 MiB"), "{shape}");
        assert!(error(&path("config.json")).contains("neither a folder nor a file of weights"));
    }

    #[test]
    fn several_quantizations_are_named() {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in [("a/q4.gguf", 4), ("a/q8.gguf", 8), ("b/q2.gguf", 2)] {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, vec![0; bytes]).unwrap();
        }
        let both = error(&folder.path().join("a"));
        assert!(both.contains("2 models in the format GGUF"), "{both}");
        assert!(both.contains("q4.gguf, q8.gguf; name the file"), "{both}");
        let one = read(&folder.path().join("a/q8.gguf"), false).unwrap();
        assert_eq!(one.weights.bytes, 8);
        let shape = one.shape.unwrap_err();
        assert!(shape.ends_with("q8.gguf: it is no GGUF file"), "{shape}");
        let above = error(folder.path());
        assert!(above.contains("/a, ") && above.contains("/b)"), "{above}");
    }
}
