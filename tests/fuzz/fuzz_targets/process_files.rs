//! Every parser of `/proc/PID` files, and the detection of engines by them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use umawarden::engines::{ENGINES, recognise, serving, sglang};
use umawarden::model::EngineKind;
use umawarden::parse::model_files::{Files, is_model_file};
use umawarden::parse::process::{
    arguments, cgroup, listening, mapped_files, read_amounts, resident, stat, system_unit,
    system_units, tcp_sockets, unit, user_id, variable,
};

fuzz_target!(|text: &[u8]| {
    let comm = stat(text).map(|stat| stat.comm).unwrap_or_default();
    let arguments = arguments(text);
    for shown in arguments.iter().chain([&comm]) {
        assert!(shown.chars().all(|c| !c.is_control()));
    }
    let _ = recognise(&comm, &arguments, Some("ComfyUI"));
    for kind in EngineKind::ALL {
        assert_ne!(serving(kind, &arguments).port, Some(0));
    }
    let _ =
        (resident(text), read_amounts(text), listening(text, 8000).count(), variable(text, "A"));
    let _ = (user_id(text), tcp_sockets(text).count());
    let mut files = Files::default();
    for (_, path) in mapped_files(text) {
        assert!(path.starts_with('/'));
        let _ = is_model_file(path);
        files.add(path);
    }
    assert!(files.patterns().len() <= 16);
    let text = String::from_utf8_lossy(text);
    if let Some(path) = cgroup(&text) {
        assert!(path.starts_with('/') && !path.split('/').any(|part| part == ".."));
        let _ = (unit(path), system_unit(path), system_units(path).count());
    }
    for source in ENGINES.iter().flat_map(|facts| facts.load) {
        let _ = (source.read)(&text);
    }
    let _ = sglang::version(&text);
});
