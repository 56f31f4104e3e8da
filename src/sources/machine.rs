//! The machine's model, as its firmware names it.

use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use crate::files::open_regular;

/// Longer names are cut.
const MOST_BYTES: u64 = 128;

/// The model, from DMI or the device tree. `None` where neither names one.
pub fn model(sysfs: &Path) -> Option<Arc<str>> {
    let files = ["class/dmi/id/product_name", "firmware/devicetree/base/model"];
    files.iter().find_map(|file| name(&sysfs.join(file)))
}

fn name(path: &Path) -> Option<Arc<str>> {
    let mut text = Vec::new();
    open_regular(path).ok()?.take(MOST_BYTES).read_to_end(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text);
    // A device tree ends its texts with a zero byte.
    let name = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
    (!name.is_empty()).then(|| name.into())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_firmware_names_the_machine() {
        let sysfs = tempfile::tempdir().unwrap();
        assert_eq!(model(sysfs.path()), None);
        let tree = sysfs.path().join("firmware/devicetree/base");
        fs::create_dir_all(&tree).unwrap();
        fs::write(tree.join("model"), "NVIDIA Jetson AGX Thor Developer Kit\0").unwrap();
        assert_eq!(model(sysfs.path()).as_deref(), Some("NVIDIA Jetson AGX Thor Developer Kit"));
        let dmi = sysfs.path().join("class/dmi/id");
        fs::create_dir_all(&dmi).unwrap();
        fs::write(dmi.join("product_name"), "NVIDIA_DGX_Spark\n").unwrap();
        assert_eq!(model(sysfs.path()).as_deref(), Some("NVIDIA_DGX_Spark"));
    }
}
