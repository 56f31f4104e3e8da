//! The index of a model's shards: `model.safetensors.index.json` of Hugging Face's libraries.
//!
//! Its `weight_map` names a file for each tensor. `save_pretrained` of transformers 5.19 writes it
//! sorted by the names of tensors, and libraries of others in the order in which they write.

use std::collections::BTreeSet;
use std::fmt;
use std::io;

use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// The most files that an index may name.
pub const MOST_FILES: usize = 4_096;

/// `NAME_MAX` of Linux.
const LONGEST_NAME: usize = 255;

/// The names of the files, in the order in which the index names them first. It holds no more of a
/// text than these; bound the text itself.
///
/// # Errors
/// It cannot be read or is no JSON, has no `weight_map`, or that has something else than at least
/// one and at most [`MOST_FILES`] names of files.
pub fn files(text: impl io::Read) -> Result<Vec<String>, String> {
    let mut reader = serde_json::Deserializer::from_reader(text);
    let read = |error: serde_json::Error| error.to_string();
    let Index(files) = Index::deserialize(&mut reader).map_err(read)?;
    reader.end().map_err(read)?;
    match files {
        Some(files) if !files.is_empty() => Ok(files),
        _ => Err("it has no weight_map".to_owned()),
    }
}

/// Whether a text is the name of a file in a folder.
fn is_name(text: &str) -> bool {
    let is_odd = |character: char| character == '/' || character.is_control();
    !matches!(text, "" | "." | "..") && text.len() <= LONGEST_NAME && !text.contains(is_odd)
}

struct Index(Option<Vec<String>>);

impl<'de> Deserialize<'de> for Index {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TopLevel;
        impl<'de> Visitor<'de> for TopLevel {
            type Value = Option<Vec<String>>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an index of weights")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut files = None;
                while let Some(key) = map.next_key::<String>()? {
                    if key == "weight_map" {
                        files = Some(map.next_value_seed(WeightMap)?);
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(files)
            }
        }
        deserializer.deserialize_map(TopLevel).map(Self)
    }
}

struct WeightMap;

impl<'de> DeserializeSeed<'de> for WeightMap {
    type Value = Vec<String>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for WeightMap {
    type Value = Vec<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a weight_map: the name of a file for each tensor")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut files, mut known) = (Vec::new(), BTreeSet::new());
        while map.next_key::<IgnoredAny>()?.is_some() {
            let name = map.next_value::<String>()?;
            if known.contains(&name) {
                continue;
            }
            if !is_name(&name) {
                let name: String = name.chars().take(LONGEST_NAME).collect();
                return Err(A::Error::custom(format!(
                    "its weight_map names {name:?}, which is no name of a file in the folder"
                )));
            }
            if files.len() >= MOST_FILES {
                let text = format!("its weight_map names more than {MOST_FILES} files");
                return Err(A::Error::custom(text));
            }
            known.insert(name.clone());
            files.push(name);
        }
        Ok(files)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(text: &str) -> Result<Vec<String>, String> {
        files(text.as_bytes())
    }

    #[test]
    fn files_are_in_the_order_in_which_they_are_named_first() {
        let text = r#"{"metadata": {"total_size": 7, "x": [[{}]]}, "weight_map":
            {"b": "vision.safetensors", "a": "text.safetensors", "c": "vision.safetensors",
             "d": "au\u0064io.safetensors"}, "more": null}"#;
        let expected = ["vision.safetensors", "text.safetensors", "audio.safetensors"];
        assert_eq!(of(text).unwrap(), expected);
    }

    #[test]
    fn the_last_of_two_maps_counts_as_it_does_for_engines() {
        let text = r#"{"weight_map": {"a": "x"}, "weight_map": {"a": "y"}}"#;
        assert_eq!(of(text).unwrap(), ["y"]);
    }

    #[test]
    fn what_is_no_index_or_names_no_files_of_the_folder_is_refused() {
        let deep = format!("{{\"a\": {}", "[".repeat(100_000));
        let long = format!(r#"{{"weight_map": {{"a": "{}"}}}}"#, "x".repeat(256));
        for text in [
            "",
            "[]",
            "{}",
            r#"{"weight_map": {}}"#,
            r#"{"weight_map": "x"}"#,
            r#"{"weight_map": {"a": 7}}"#,
            r#"{"weight_map": {"a": "../b"}}"#,
            r#"{"weight_map": {"a": ".."}}"#,
            r#"{"weight_map": {"a": ""}}"#,
            r#"{"weight_map": {"a": "b\u0000"}}"#,
            r#"{"weight_map": {"a": "b"}} and more"#,
            r#"{"weight_map": {"a": "b"}"#,
            &deep,
            &long,
        ] {
            assert!(of(text).is_err(), "{}", &text[..text.len().min(80)]);
        }
    }

    #[test]
    fn no_more_files_are_kept_than_an_engine_may_have() {
        let entries = |count: usize| {
            let all: Vec<String> = (0..count).map(|at| format!(r#""{at}": "{at}.x""#)).collect();
            format!(r#"{{"weight_map": {{{}}}}}"#, all.join(","))
        };
        assert_eq!(of(&entries(MOST_FILES)).unwrap().len(), MOST_FILES);
        assert!(of(&entries(MOST_FILES + 1)).unwrap_err().contains("more than 4096 files"));
    }

    proptest! {
        #[test]
        fn any_text_gives_names_of_files_or_an_error(text in "\\PC{0,200}") {
            if let Ok(files) = of(&text) {
                prop_assert!(files.iter().all(|name| is_name(name)));
            }
        }

        #[test]
        fn names_come_back_once_each(names in prop::collection::vec("[a-c]{1,2}", 1..20)) {
            let entry = |(at, name): (usize, &String)| format!(r#""{at}": "{name}""#);
            let entries: Vec<String> = names.iter().enumerate().map(entry).collect();
            let read = of(&format!(r#"{{"weight_map": {{{}}}}}"#, entries.join(","))).unwrap();
            let mut expected = Vec::new();
            for name in names {
                if !expected.contains(&name) {
                    expected.push(name);
                }
            }
            prop_assert_eq!(read, expected);
        }
    }
}
