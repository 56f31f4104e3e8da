//! The images of `packaging/image`: what a runtime reads in them, and what the program needs to start.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::{output, packages};

/// An image, unpacked into a folder.
struct Image {
    folder: tempfile::TempDir,
}

impl Image {
    fn unpack(archive: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        output("tar", &["-xf", archive, "-C", &folder.path().display().to_string()]);
        Self { folder }
    }

    fn json(&self, name: &str) -> Value {
        serde_json::from_slice(&fs::read(self.folder.path().join(name)).unwrap()).unwrap()
    }

    /// The path in the image of a blob that has the size and the digest of its descriptor.
    fn blob(&self, descriptor: &Value) -> String {
        let digest = descriptor["digest"].as_str().unwrap();
        let name = format!("blobs/{}", digest.replace(':', "/"));
        let content = fs::read(self.folder.path().join(&name)).unwrap();
        assert_eq!(descriptor["size"], content.len(), "{name}");
        assert_eq!(digest, format!("sha256:{}", hexadecimal(&content)));
        name
    }

    /// Unpacks a layer over the ones before it, and returns the digest of its tar.
    fn apply(&self, layer: &str, root: &Path) -> String {
        let packed = fs::File::open(self.folder.path().join(layer)).unwrap();
        let tar = self.folder.path().join("layer.tar");
        let mut unpacked = fs::File::create(&tar).unwrap();
        std::io::copy(&mut flate2::read::GzDecoder::new(packed), &mut unpacked).unwrap();
        let (tar_name, root) = (tar.display().to_string(), root.display().to_string());
        output("tar", &["-xf", &tar_name, "--no-same-owner", "-C", &root]);
        format!("sha256:{}", hexadecimal(&fs::read(tar).unwrap()))
    }
}

fn hexadecimal(content: &[u8]) -> String {
    let mut text = String::new();
    for byte in Sha256::digest(content) {
        write!(text, "{byte:02x}").unwrap();
    }
    text
}

/// What `readelf` prints between brackets behind a text.
fn bracketed<'a>(printed: &'a str, before: &str) -> Vec<&'a str> {
    let rests = printed.lines().filter_map(|line| line.split_once(before));
    rests.filter_map(|(_, rest)| rest.split_once(']')).map(|(name, _)| name).collect()
}

/// A link in the image is one of the image's root.
fn resolved(root: &Path, path: &str) -> bool {
    let inside = root.join(path.trim_start_matches('/'));
    match fs::read_link(&inside) {
        Ok(target) if target.is_absolute() => resolved(root, &target.display().to_string()),
        _ => inside.is_file(),
    }
}

/// The names of all files below a folder.
fn names(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            names(&entry.path(), found);
        } else {
            found.insert(entry.file_name().display().to_string());
        }
    }
}

#[test]
fn an_image_is_whole_and_has_what_the_program_needs() {
    for archive in packages(".oci.tar").unwrap_or_default() {
        let image = Image::unpack(&archive);
        assert_eq!(image.json("oci-layout")["imageLayoutVersion"], "1.0.0");
        let index = image.json("index.json");
        let manifest = image.json(&image.blob(&index["manifests"][0]));
        let config = image.json(&image.blob(&manifest["config"]));
        let is_arm = archive.contains("aarch64");
        assert_eq!(config["architecture"], if is_arm { "arm64" } else { "amd64" }, "{archive}");
        // Without root it reads; whoever wants more says so.
        assert_eq!(config["config"]["User"], "65532:65532");
        assert_eq!(config["config"]["Entrypoint"], serde_json::json!(["/usr/bin/umawarden"]));
        assert_eq!(config["config"]["Cmd"], serde_json::json!(["run"]));
        let base = config["config"]["Labels"]["dev.umawarden.base"].as_str().unwrap();
        assert!(base.contains("libc6_") && base.contains("ca-certificates_"), "{base}");

        let root = tempfile::tempdir().unwrap();
        let layers = manifest["layers"].as_array().unwrap().iter();
        let layers: Vec<String> = layers.map(|layer| image.blob(layer)).collect();
        let unpacked: Vec<String> =
            layers.iter().map(|layer| image.apply(layer, root.path())).collect();
        assert_eq!(config["rootfs"]["diff_ids"], serde_json::json!(unpacked));
        // Older versions of Docker read this file alone.
        let legacy = &image.json("manifest.json")[0];
        assert_eq!(legacy["Layers"], serde_json::json!(layers));

        let program = root.path().join("usr/bin/umawarden").display().to_string();
        let headers = output("readelf", &["--wide", "--program-headers", &program]);
        let loader = bracketed(&headers, "program interpreter: ");
        assert_eq!(loader.len(), 1, "{headers}");
        assert!(resolved(root.path(), loader[0]), "{loader:?} is not in {archive}");
        let dynamic = output("readelf", &["--wide", "--dynamic", &program]);
        let needed = bracketed(&dynamic, "Shared library: [");
        assert!(needed.contains(&"libc.so.6"), "{dynamic}");
        let mut found = BTreeSet::new();
        names(root.path(), &mut found);
        // libnvidia-ml.so.1 is loaded later, and needs some of the others.
        for library in needed.into_iter().chain(["libdl.so.2", "libm.so.6", "libpthread.so.0"]) {
            assert!(found.contains(library), "{library} is not in {archive}");
        }
        assert!(root.path().join("etc/ssl/certs/ca-certificates.crt").is_file());
        assert!(!found.contains("sh") && !found.contains("bash"), "{found:?}");
    }
}
