//! The images of `packaging/image`: what a runtime reads in them, and what the program needs to start.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{output, packages};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

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
        assert_eq!(config["config"]["Entrypoint"], json!(["/usr/bin/umawarden"]));
        assert_eq!(config["config"]["Cmd"], json!(["run"]));
        let base = config["config"]["Labels"]["dev.umawarden.base"].as_str().unwrap();
        assert!(base.contains("libc6_") && base.contains("ca-certificates_"), "{base}");

        let root = tempfile::tempdir().unwrap();
        let layers = manifest["layers"].as_array().unwrap().iter();
        let layers: Vec<String> = layers.map(|layer| image.blob(layer)).collect();
        let unpacked: Vec<String> =
            layers.iter().map(|layer| image.apply(layer, root.path())).collect();
        assert_eq!(config["rootfs"]["diff_ids"], json!(unpacked));
        // Older versions of Docker read this file alone.
        let legacy = &image.json("manifest.json")[0];
        assert_eq!(legacy["Layers"], json!(layers));

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

/// An image with two layers, of which one is the same for all architectures. Returns its archive.
fn small_image(folder: &Path, architecture: &str) -> String {
    let layout = folder.join(architecture);
    fs::create_dir_all(layout.join("blobs/sha256")).unwrap();
    let add_blob = |content: &str, kind: &str| {
        let digest = hexadecimal(content.as_bytes());
        fs::write(layout.join("blobs/sha256").join(&digest), content).unwrap();
        json!({"mediaType": kind, "digest": format!("sha256:{digest}"), "size": content.len()})
    };
    let config = json!({"architecture": architecture, "os": "linux"}).to_string();
    let layers = ["shared", architecture]
        .map(|text| add_blob(text, "application/vnd.oci.image.layer.v1.tar"));
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": add_blob(&config, "application/vnd.oci.image.config.v1+json"),
        "layers": layers,
    });
    let mut reference = add_blob(&manifest.to_string(), MANIFEST);
    reference["platform"] = json!({"architecture": architecture, "os": "linux"});
    reference["annotations"] = json!({"org.opencontainers.image.ref.name": "0.1.0"});
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [reference]});
    fs::write(layout.join("index.json"), index.to_string()).unwrap();
    let archive = folder.join(format!("{architecture}.oci.tar")).display().to_string();
    let layout = layout.display().to_string();
    output("tar", &["-cf", &archive, "-C", &layout, "blobs", "index.json"]);
    archive
}

/// The index has these images, each blob once, with the digests and sizes that it states.
fn assert_index_is_whole(archive: &str, images: &[String]) {
    let layout = Image::unpack(archive);
    assert_eq!(layout.json("oci-layout")["imageLayoutVersion"], "1.0.0");
    let entries = layout.json("index.json");
    let entry = &entries["manifests"][0];
    // skopeo and crane take the only entry of a layout.
    assert_eq!(entries["manifests"].as_array().unwrap().len(), 1, "{entries}");
    assert_eq!(entry["mediaType"], INDEX);
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(entry["annotations"]["org.opencontainers.image.ref.name"], version);
    let path = layout.blob(entry);
    let index = layout.json(&path);
    assert_eq!(index["annotations"]["org.opencontainers.image.version"], version);
    assert!(index["annotations"]["org.opencontainers.image.revision"].is_string(), "{index}");
    let mut reached = BTreeSet::from([path]);
    let mut listed = BTreeSet::new();
    for reference in index["manifests"].as_array().unwrap() {
        assert_eq!(reference["mediaType"], MANIFEST);
        let path = layout.blob(reference);
        let manifest = layout.json(&path);
        let config = layout.blob(&manifest["config"]);
        let architecture = &reference["platform"]["architecture"];
        assert_eq!(layout.json(&config)["architecture"], *architecture, "{index}");
        reached.extend([path, config]);
        let layers = manifest["layers"].as_array().unwrap().iter();
        reached.extend(layers.map(|layer| layout.blob(layer)));
        listed.insert(reference["digest"].to_string());
    }
    let digest_of = |image: &String| {
        Image::unpack(image).json("index.json")["manifests"][0]["digest"].to_string()
    };
    let wanted: BTreeSet<String> = images.iter().map(digest_of).collect();
    assert_eq!(listed, wanted);
    let mut files = BTreeSet::new();
    names(&layout.folder.path().join("blobs"), &mut files);
    let paths: BTreeSet<String> =
        files.into_iter().map(|name| format!("blobs/sha256/{name}")).collect();
    assert_eq!(reached, paths, "{archive} has blobs that nothing refers to");
}

#[test]
fn an_index_has_the_images_of_all_architectures() {
    let folder = tempfile::tempdir().unwrap();
    let images = ["arm64", "amd64"].map(|architecture| small_image(folder.path(), architecture));
    let into = folder.path().display().to_string();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/image");
    let version = env!("CARGO_PKG_VERSION");
    let index = folder.path().join(format!("umawarden-{version}.oci-index.tar"));
    let build = |images: &[String]| {
        let arguments = ["index", "--version", version, "--output", &into];
        let built = Command::new(&script).args(arguments).args(images).output().unwrap();
        assert!(built.status.success(), "{built:?}");
        fs::read(&index).unwrap()
    };
    let first = build(&images);
    assert_index_is_whole(&index.display().to_string(), &images);
    let [arm, intel] = images;
    assert_eq!(build(&[intel, arm]), first, "the order of the images does not matter");

    for archive in packages(".oci-index.tar").unwrap_or_default() {
        assert_index_is_whole(&archive, &packages(".oci.tar").unwrap());
    }
}
