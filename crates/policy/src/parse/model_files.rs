//! Which files are a model's.

use std::collections::BTreeMap;

/// Endings of files that hold weights.
const ENDINGS: [&str; 8] = ["safetensors", "gguf", "pt", "pth", "ckpt", "engine", "plan", "onnx"];

/// The most patterns of one engine.
const MAX_PATTERNS: usize = 16;

/// Whether a file holds weights, by its path.
pub fn is_model_file(path: &str) -> bool {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    if let Some((stem, ending)) = name.rsplit_once('.') {
        let is_torch = ending == "bin" && stem.contains("model");
        if !stem.is_empty() && (is_torch || ENDINGS.contains(&ending)) {
            return true;
        }
    }
    is_blob(folder, name)
}

/// As Ollama, and the cache of Hugging Face, keep them: named by what is in them.
fn is_blob(folder: &str, name: &str) -> bool {
    let digest = name.strip_prefix("sha256-").unwrap_or(name);
    folder.ends_with("/blobs")
        && digest.len() == 64
        && digest.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// A glob for a model file and similar files in its folder.
fn pattern_of(path: &str) -> String {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    let folder = escaped(folder);
    if is_blob(folder.as_str(), name) {
        return format!("{folder}/{}*", if name.starts_with("sha256-") { "sha256-" } else { "" });
    }
    match name.rsplit_once('.') {
        Some((_, ending)) if ENDINGS.contains(&ending) => format!("{folder}/*.{ending}"),
        _ => format!("{folder}/{}", escaped(name)),
    }
}

/// A text that a glob matches as it is.
fn escaped(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '*' | '?' | '[' | ']' => {
                pattern.push('[');
                pattern.push(character);
                pattern.push(']');
            }
            character => pattern.push(character),
        }
    }
    pattern
}

/// The model files of one engine, as patterns: those that most files match, first.
#[derive(Clone, Debug, Default)]
pub struct Files {
    counts: BTreeMap<String, usize>,
}

impl Files {
    /// One more.
    pub fn add(&mut self, path: &str) {
        let pattern = pattern_of(path);
        let is_full = self.counts.len() >= 8 * MAX_PATTERNS;
        if let Some(count) = self.counts.get_mut(&pattern) {
            *count += 1;
        } else if !is_full {
            self.counts.insert(pattern, 1);
        }
    }

    /// Those of another process of the same engine.
    pub fn join(&mut self, others: &Self) {
        for (pattern, count) in &others.counts {
            if self.counts.len() < 8 * MAX_PATTERNS || self.counts.contains_key(pattern) {
                *self.counts.entry(pattern.clone()).or_default() += count;
            }
        }
    }

    /// The patterns, at most a few.
    pub fn patterns(&self) -> Vec<String> {
        let mut patterns: Vec<(&String, &usize)> = self.counts.iter().collect();
        patterns.sort_by(|one, other| other.1.cmp(one.1).then_with(|| one.0.cmp(other.0)));
        let mut kept: Vec<String> =
            patterns.into_iter().take(MAX_PATTERNS).map(|(pattern, _)| pattern.clone()).collect();
        kept.sort();
        kept
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn weight_files_are_recognised_by_their_names() {
        let digest = "a".repeat(64);
        for path in [
            "/m/model-00001-of-00002.safetensors",
            "/m/x.gguf",
            "/m/pytorch_model-1.bin",
            &format!("/root/.ollama/models/blobs/sha256-{digest}"),
            &format!("/hub/models--x/blobs/{digest}"),
        ] {
            assert!(is_model_file(path), "{path}");
        }
        for path in
            ["/m/.safetensors", "/m/tokenizer.json", "/lib/x.so", "/m/data.bin", "/m/sha256-a"]
        {
            assert!(!is_model_file(path), "{path}");
        }
    }

    #[test]
    fn patterns_cover_only_files_of_the_same_kind() {
        let mut files = Files::default();
        for path in
            ["/m [1]/a-1.safetensors", "/m [1]/a-2.safetensors", "/n/x.gguf", "/n/model*.bin"]
        {
            files.add(path);
        }
        assert_eq!(files.patterns(), ["/m [[]1[]]/*.safetensors", "/n/*.gguf", "/n/model[*].bin"]);
        for number in 0..1000 {
            files.add(&format!("/m{number}/x.gguf"));
        }
        assert!(files.patterns().len() <= 16);
        assert!(files.patterns().contains(&"/m [[]1[]]/*.safetensors".to_owned()), "of most files");
    }

    proptest! {
        #[test]
        fn a_pattern_matches_the_file_that_it_was_made_of(
            path in "(/[a-z*?\\[\\] ]{1,6}){1,3}\\.(gguf|bin)",
        ) {
            let pattern = glob::Pattern::new(&pattern_of(&path)).unwrap();
            prop_assert!(pattern.matches(&path), "{} {}", pattern, path);
        }
    }
}
