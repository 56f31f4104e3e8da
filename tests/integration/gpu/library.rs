//! Only `umawarden nvml-child` loads the driver's library.

use std::fs;
use std::path::Path;

/// Files that may name the NVML wrapper or load a library by name.
const ALLOWED: [&str; 3] = ["src/nvml/", "src/sys/nvml.rs", "src/cli/nvml_child.rs"];

fn find_uses(folder: &Path, root: &Path, wrong: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            find_uses(&path, root, wrong);
            continue;
        }
        let name = path.strip_prefix(root).unwrap().display().to_string();
        let text = fs::read_to_string(&path).unwrap();
        let names_it = ["nvml_wrapper", "libloading", "dlopen", "crate::nvml"];
        let named = text.lines().any(|line| names_it.iter().any(|word| line.contains(word)));
        if named && !ALLOWED.iter().any(|may| name.starts_with(may)) {
            wrong.push(name);
        }
    }
}

#[test]
fn only_the_nvml_child_loads_the_drivers_library() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut wrong = Vec::new();
    for folder in ["src", "crates"] {
        find_uses(&root.join(folder), root, &mut wrong);
    }
    assert!(wrong.is_empty(), "{wrong:?}");
    // The search does find the wrapper where it is used.
    let text = fs::read_to_string(root.join("src/nvml/mod.rs")).unwrap();
    assert!(text.contains("nvml_wrapper"));
}
