//! Nothing but that process loads the driver's library.

use std::fs;
use std::path::Path;

/// Where the wrapper of NVML, or a library by name, may be named.
const MAY: [&str; 3] = ["src/nvml/", "src/sys/nvml.rs", "src/cli/nvml_child.rs"];

fn look(folder: &Path, root: &Path, wrong: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            look(&path, root, wrong);
            continue;
        }
        let name = path.strip_prefix(root).unwrap().display().to_string();
        let text = fs::read_to_string(&path).unwrap();
        let names_it = ["nvml_wrapper", "libloading", "dlopen", "crate::nvml"];
        let named = text.lines().any(|line| names_it.iter().any(|word| line.contains(word)));
        if named && !MAY.iter().any(|may| name.starts_with(may)) {
            wrong.push(name);
        }
    }
}

#[test]
fn nothing_else_loads_the_drivers_library() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut wrong = Vec::new();
    for folder in ["src", "crates"] {
        look(&root.join(folder), root, &mut wrong);
    }
    assert!(wrong.is_empty(), "{wrong:?}");
    // The test would notice.
    let text = fs::read_to_string(root.join("src/nvml/mod.rs")).unwrap();
    assert!(text.contains("nvml_wrapper"));
}
