use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn folder(files: &[(&str, u64)]) -> Vec<FoundFile> {
    let file = |(at, (name, bytes)): (usize, &(&str, u64))| FoundFile {
        name: (*name).to_owned(),
        bytes: *bytes,
        identity: (1, at as u64),
    };
    files.iter().enumerate().map(file).collect()
}

fn chosen(files: &[(&str, u64)], choice: Choice<'_>) -> Result<Weights, String> {
    select(&folder(files), choice, |_| None)
}

fn with_index(files: &[(&str, u64)], index: &str) -> Result<Weights, String> {
    select(&folder(files), Choice::Usual, |name| (name == INDICES[0]).then(|| Ok(index.to_owned())))
}

#[test]
fn a_consolidated_file_beside_shards_is_the_same_model() {
    let files = [
        ("consolidated.safetensors", 44),
        ("model-00001-of-00002.safetensors", 22),
        ("model-00002-of-00002.safetensors", 22),
    ];
    let usual = chosen(&files, Choice::Usual).unwrap();
    assert_eq!((usual.bytes, usual.largest_bytes, usual.files), (44, 22, 2));
    assert!(usual.notes[0].contains("consolidated.safetensors (the same weights"), "{usual:?}");
    let native = chosen(&files, Choice::Consolidated).unwrap();
    assert_eq!((native.bytes, native.largest_bytes, native.files), (44, 44, 1));
    assert_eq!(chosen(&files[..1], Choice::Usual).unwrap().bytes, 44, "alone");
    assert_eq!(chosen(&files[1..], Choice::Consolidated).unwrap().bytes, 44, "absent");
    let sharded = [("consolidated-00001-of-00002.safetensors", 20), ("model.safetensors", 30)];
    assert_eq!(chosen(&sharded, Choice::Usual).unwrap().bytes, 30);
    let error = chosen(&sharded, Choice::Consolidated).unwrap_err();
    assert!(error.contains("1 of 2 parts of consolidated"), "{error}");
}

#[test]
fn the_index_decides_which_files_count() {
    let files = [("a.safetensors", 10), ("b.safetensors", 5), ("extra.safetensors", 99)];
    let index = |names: &[&str]| {
        let map: serde_json::Map<String, Value> =
            names.iter().map(|name| (format!("layer of {name}"), json!(name))).collect();
        json!({ "metadata": {}, "weight_map": map }).to_string()
    };
    let weights = with_index(&files, &index(&["a.safetensors", "b.safetensors"])).unwrap();
    assert_eq!((weights.bytes, weights.files), (15, 2));
    assert!(weights.notes[0].contains("extra.safetensors (not in model.safetensors.index.json)"));
    for (text, expected) in [
        (index(&["a.safetensors", "c.safetensors"]), "lacks 1 of 2 files"),
        (index(&["../../etc/passwd"]), "which is no name of a file in the folder"),
        (index(&[]), "it has no weight_map"),
        ("{".to_owned(), "model.safetensors.index.json: EOF"),
        ("[]".to_owned(), "expected an index of weights"),
        (json!({ "weight_map": { "a": 3 } }).to_string(), "expected a string"),
    ] {
        let error = with_index(&files, &text).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
    let unread = select(&folder(&files), Choice::Usual, |_| Some(Err("cannot read".to_owned())));
    assert_eq!(unread.unwrap_err(), "cannot read");
}

#[test]
fn one_quantization_is_counted() {
    let one = [("q4-00001-of-00002.gguf", 10), ("q4-00002-of-00002.gguf", 7), ("mmproj.gguf", 1)];
    let weights = chosen(&one, Choice::Usual).unwrap();
    assert_eq!((weights.bytes, weights.files), (17, 2));
    assert!(weights.notes[0].contains("mmproj.gguf (a projector"), "{weights:?}");
    let several = [&one[..], &[("q8.gguf", 30), ("f16.gguf", 60)]].concat();
    let error = chosen(&several, Choice::Usual).unwrap_err();
    assert!(error.contains("3 models in the format GGUF"), "{error}");
    assert!(error.contains("f16.gguf, q4-00001-of-00002.gguf, q8.gguf; name the file"), "{error}");
    for (name, expected) in [("q8.gguf", 30), ("q4-00001-of-00002.gguf", 17), ("mmproj.gguf", 1)] {
        assert_eq!(chosen(&several, Choice::File(name)).unwrap().bytes, expected, "{name}");
    }
    let error = chosen(&several[1..], Choice::File("q4-00002-of-00002.gguf")).unwrap_err();
    assert!(error.contains("1 of 2 parts of q4; the download is incomplete"), "{error}");
    assert_eq!(chosen(&one, Choice::File("gone.gguf")).unwrap_err(), "it has no gone.gguf");
    assert!(chosen(&[("mmproj-f16.gguf", 1)], Choice::Usual).is_err());
}

#[test]
fn other_formats_and_other_names_are_not_counted_again() {
    let files = [
        ("model.safetensors", 10),
        ("pytorch_model.bin", 10),
        ("model.pt", 10),
        ("optimizer.bin", 90),
        (".safetensors", 90),
    ];
    let weights = chosen(&files, Choice::Usual).unwrap();
    assert_eq!((weights.bytes, weights.files), (10, 1));
    assert!(weights.notes[0].contains("pytorch_model.bin, model.pt"), "{weights:?}");
    assert_eq!(chosen(&files[1..], Choice::Usual).unwrap().bytes, 10, "*.bin before *.pt");
    assert_eq!(chosen(&[("consolidated.00.pth", 3)], Choice::Usual).unwrap().bytes, 3);
    let error = chosen(&[("optimizer.bin", 1), ("x.txt", 1)], Choice::Usual).unwrap_err();
    assert!(error.contains("no *.safetensors"), "{error}");
    let mut linked = folder(&[("a.safetensors", 10), ("again.safetensors", 10)]);
    linked[1].identity = linked[0].identity;
    assert_eq!(select(&linked, Choice::Usual, |_| None).unwrap().bytes, 10);
    let cut = [("model-00001-of-00030.safetensors", 1)];
    assert!(chosen(&cut, Choice::Usual).unwrap_err().contains("1 of 30 parts"));
}

proptest! {
    #[test]
    fn never_more_than_the_folder_has(
        files in proptest::collection::btree_map(
            "(consolidated|model|q4|mmproj|x)(-0000[0-3]-of-0000[0-3])?\\.(safetensors|gguf|bin|pt)",
            any::<u64>(),
            0..8,
        ),
        index in proptest::option::of(".{0,60}"),
        file in proptest::option::of(".{0,12}\\.gguf"),
    ) {
        let found: Vec<FoundFile> = files
            .iter()
            .enumerate()
            .map(|(at, (name, bytes))| FoundFile {
                name: name.clone(), bytes: *bytes, identity: (0, at as u64),
            })
            .collect();
        let choice = file.as_deref().map_or(Choice::Usual, Choice::File);
        let all = files.values().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
        match select(&found, choice, |_| index.clone().map(Ok)) {
            Ok(weights) => {
                prop_assert!(weights.bytes <= all && weights.files <= files.len());
                prop_assert!(weights.largest_bytes <= weights.bytes);
            }
            Err(why) => prop_assert!(!why.is_empty()),
        }
    }
}
