//! What an umawarden that observes could write: as the book says, its own folders.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

fn read(below_root: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(below_root);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The values of a directive in the lines of a unit.
fn directives<'u>(unit: &'u str, name: &str) -> Vec<&'u str> {
    let assigned = |line: &'u str| line.strip_prefix(name)?.strip_prefix('=');
    unit.lines().filter_map(assigned).collect()
}

#[test]
fn the_unit_can_write_its_own_folders_alone() {
    let unit = read("packaging/systemd/umawarden.service");
    for (name, expected) in [
        ("ProtectSystem", "strict"),
        ("ProtectHome", "read-only"),
        ("ProtectKernelTunables", "yes"),
        ("ProtectControlGroups", "yes"),
        ("PrivateTmp", "yes"),
        ("StateDirectory", "umawarden"),
        ("RuntimeDirectory", "umawarden"),
        // ProtectSystem= leaves out /dev, /proc and /sys.
        ("ReadOnlyPaths", "-/dev/shm -/dev/mqueue -/dev/hugepages"),
    ] {
        assert_eq!(directives(&unit, name), [expected], "{name}");
    }
    for name in ["ReadWritePaths", "BindPaths", "TemporaryFileSystem", "CacheDirectory"] {
        assert!(directives(&unit, name).is_empty(), "{name}");
    }
}

/// The parts of a volume or a device in the short form.
fn parts(mapping: &Value) -> Vec<&str> {
    mapping.as_str().unwrap().split(':').collect()
}

#[test]
fn the_compose_file_lets_the_container_write_its_own_folders_alone() {
    let compose: Value = serde_saphyr::from_str(&read("packaging/compose/one-spark.yaml")).unwrap();
    let service = &compose["services"]["umawarden"];
    assert_eq!(service["read_only"], true);
    assert_eq!(service["cap_drop"], json!(["ALL"]));
    for absent in ["privileged", "tmpfs"] {
        assert_eq!(service.get(absent), None, "{absent}");
    }
    let options = service["security_opt"].as_array().unwrap();
    assert!(options.contains(&json!("no-new-privileges:true")), "{options:?}");
    let volumes = service["volumes"].as_array().unwrap().iter().map(parts);
    let writable = volumes.filter(|parts| parts.get(2) != Some(&"ro"));
    let writable: Vec<&str> = writable.map(|parts| parts[1]).collect();
    assert_eq!(writable, ["/var/lib/umawarden", "/run/umawarden"]);
    for device in service["devices"].as_array().unwrap() {
        assert_eq!(parts(device).get(2), Some(&"r"), "{device}");
    }
    // The second file adds one volume, which it mounts read-only.
    let pair: Value = serde_saphyr::from_str(&read("packaging/compose/two-sparks.yaml")).unwrap();
    let added = pair["services"]["umawarden"]["volumes"].as_array().unwrap();
    assert!(added.iter().all(|volume| volume["read_only"] == true), "{added:?}");
}
