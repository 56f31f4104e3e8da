use proptest::prelude::*;

use super::super::examine as examine_all;
use super::super::tests::{shipped, well};
use super::*;
use crate::engines::loaders::PageCacheUse;

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

/// A running server of that command, with those packages.
fn running(line: &str, packages: &[(&str, &str)]) -> StartedEngine {
    let pair = |(name, version): &(&str, &str)| ((*name).to_owned(), (*version).to_owned());
    let known = packages.iter().map(pair).collect();
    let otherwise = "no folder names it".to_owned();
    let command = LaunchCommand::read(&words(line)).unwrap_or_else(|| panic!("{line}"));
    StartedEngine::new(command, Versions { known, otherwise })
}

fn on(machine: &str) -> DoctorFacts {
    let misfits = ProfileMisfits { profile: machine.to_owned(), ..ProfileMisfits::default() };
    DoctorFacts { settings: Fact::Is(misfits), ..well() }
}

/// The ids of what is found about a command, and the texts of what is unknown.
fn found(facts: DoctorFacts, started: StartedEngine) -> (Vec<String>, Vec<String>) {
    let loaders = Fact::Is(vec![RunningLoader::Server { pid: 7, started }]);
    let findings = examine_all(&DoctorFacts { loaders, ..facts });
    let ids = findings.iter().filter_map(|finding| finding.id.clone());
    let unknown = findings.iter().filter(|finding| finding.severity == Severity::Unknown);
    (ids.collect(), unknown.map(|finding| finding.text.clone()).collect())
}

fn ids(facts: DoctorFacts, line: &str, packages: &[(&str, &str)]) -> Vec<String> {
    let (ids, unknown) = found(facts, running(line, packages));
    assert_eq!(unknown, Vec::<String>::new(), "{line}");
    ids
}

#[test]
fn each_entry_has_a_source_and_a_cure() {
    let advice = shipped();
    assert!(advice.entries.len() >= 15);
    for AdviceEntry { id, cause, cure, source, severity, .. } in &advice.entries {
        assert!(source.contains("https://"), "{id}");
        assert!(!cause.is_empty() && !cure.is_empty() && *severity >= Severity::Warning, "{id}");
        assert!(!cause.ends_with('.') && !cure.ends_with('.'), "{id}: it is part of a sentence");
    }
    assert!(advice.packages().contains("vllm") && advice.packages().contains("fastsafetensors"));
    assert!(advice.variables().contains("RUNAI_STREAMER_MEMORY_LIMIT"));
}

#[test]
fn versions_of_engines_decide() {
    let vllm = "vllm serve m";
    for (version, expected) in [
        ("0.23.0", &["vllm-keeps-cache-while-loading"][..]),
        ("0.24.0rc1", &["vllm-keeps-cache-while-loading"]),
        ("0.24.0", &[]),
        ("0.24.0+cu130", &[]),
        ("0.33.0", &[]),
    ] {
        assert_eq!(ids(on("dgx-spark"), vllm, &[("vllm", version)]), expected, "{version}");
        assert!(ids(on("generic-large"), vllm, &[("vllm", version)]).is_empty());
    }
    let (ids, unknown) = found(on("dgx-spark"), running(vllm, &[]));
    assert!(ids.is_empty());
    let expected = "the version of vllm is unknown: no folder names it; not examined: \
                    vllm-keeps-cache-while-loading";
    assert_eq!(unknown, [expected]);
    for (version, why) in [
        ("latest", "vllm has the version \"latest\", which is none"),
        ("0.23.1rc1.dev1053+gf2317c227", "was built between releases, and may have the fix"),
    ] {
        let (ids, unknown) = found(on("dgx-spark"), running(vllm, &[("vllm", version)]));
        assert!(ids.is_empty() && unknown.len() == 1 && unknown[0].contains(why), "{unknown:?}");
    }
    // Where the machine excludes an entry, no version is missed.
    assert!(found(on("generic-large"), running(vllm, &[])).1.is_empty());
}

#[test]
fn options_variables_and_loaders_decide() {
    let spark = || on("dgx-spark");
    let speculative = "vllm serve m --speculative-config {}";
    let graphs = "vllm-negative-graph-estimate";
    assert_eq!(ids(spark(), speculative, &[("vllm", "0.29.0")]), [graphs]);
    for more in ["--kv-cache-memory-bytes 8G", "--kv_cache_memory_bytes=8G", "--enforce-eager"] {
        let line = format!("{speculative} {more}");
        assert!(ids(spark(), &line, &[("vllm", "0.29.0")]).is_empty(), "{more}");
    }
    let set = format!("env VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0 {speculative}");
    assert!(ids(spark(), &set, &[("vllm", "0.29.0")]).is_empty());
    let unreadable = StartedEngine {
        variables: Err("cannot read its environment".to_owned()),
        ..running(speculative, &[("vllm", "0.29.0")])
    };
    let (found, unknown) = found(spark(), unreadable);
    assert!(
        found.is_empty() && unknown[0].starts_with("cannot read its environment"),
        "{unknown:?}"
    );
    let sglang = |version, line: &str| {
        let packages = [("sglang", version), ("fastsafetensors", "0.3.3")];
        ids(spark(), &format!("sglang serve --model-path m {line}"), &packages)
    };
    let fast = "--load-format fastsafetensors";
    let drop = "--weight-loader-drop-cache-after-load";
    assert_eq!(sglang("0.5.23", ""), ["sglang-drop-cache"]);
    assert!(sglang("0.5.23", drop).is_empty());
    assert_eq!(sglang("0.5.23", fast), ["sglang-drop-cache"]);
    assert_eq!(sglang("0.5.16", &format!("{fast} {drop}")), ["sglang-ignores-drop-cache"]);
    assert!(sglang("0.5.17", &format!("{fast} {drop}")).is_empty());
    let over_nodes = sglang("0.5.23", &format!("{fast} {drop} --nnodes 2"));
    assert_eq!(over_nodes, ["sglang-fastsafetensors-over-nodes"]);
    let old = [("vllm", "0.29.0"), ("fastsafetensors", "0.2.2")];
    let found = ids(spark(), &format!("vllm serve m {fast}"), &old);
    assert_eq!(found, ["fastsafetensors-without-unified-copier"]);
    let streamed = "vllm serve m --load-format runai_streamer";
    assert_eq!(ids(spark(), streamed, &[("vllm", "0.29.0")]), ["runai-streamer-buffer"]);
    let bounded = format!("env RUNAI_STREAMER_MEMORY_LIMIT=4294967296 {streamed}");
    assert!(ids(spark(), &bounded, &[("vllm", "0.29.0")]).is_empty());
    let tensor = "vllm serve m --load-format instanttensor";
    assert_eq!(ids(on("gh200"), tensor, &[]), ["instanttensor-takes-kv-cache"]);
}

#[test]
fn each_loader_with_an_option_that_spares_the_page_cache_has_advice_with_it() {
    for (line, wanted) in [
        ("llama-server -m x.gguf -ngl 99", Some("--direct-io")),
        ("llama-server -m x.gguf --no-mmap", Some("--direct-io")),
        ("llama-server -m x.gguf", Some("--direct-io")),
        ("llama-server -m x.gguf --direct-io", None),
        ("llama-server -m x.gguf -ngl 99 --cpu-moe", None),
        ("sglang serve --model-path m", Some("--weight-loader-drop-cache-after-load")),
        (
            "sglang serve --model-path m --weight-loader-disable-mmap",
            Some("--weight-loader-drop-cache-after-load"),
        ),
        (
            "sglang serve --model-path m --ple-offload-backend file",
            Some("--weight-loader-drop-cache-after-load"),
        ),
        ("vllm serve m", None),
    ] {
        let started = running(line, &[]);
        let instead = started.loader.instead;
        assert_eq!(instead.is_some(), wanted.is_some(), "{line}");
        assert!(instead.is_none() || started.loader.page_cache == PageCacheUse::Fills, "{line}");
        let loaders = Fact::Is(vec![RunningLoader::Server { pid: 7, started }]);
        let findings = examine_all(&DoctorFacts { loaders, ..well() });
        let worst = findings.iter().find(|finding| finding.check == "loader").unwrap();
        assert!(worst.subject.as_deref().unwrap().ends_with("(pid 7)"), "{worst:?}");
        match wanted {
            Some(option) => {
                assert_eq!(worst.severity, Severity::Warning, "{line}");
                assert!(worst.text.contains("fills the page cache"), "{worst:?}");
                assert!(worst.text.contains("https://"), "it names its source: {worst:?}");
                assert!(worst.fix.as_ref().unwrap().contains(option), "{worst:?}");
            }
            None => assert_eq!(worst.severity, Severity::Ok, "{worst:?}"),
        }
    }
}

#[test]
fn pages_of_64_kib_and_hidden_cma_memory_are_found() {
    let large = DoctorFacts { page_bytes: 64 << 10, ..on("gh200") };
    let packages = [("vllm", "0.29.0")];
    let copies = ["mapped-files-and-64-kib-pages"];
    assert_eq!(ids(large.clone(), "vllm serve m", &packages), copies);
    let eager = "vllm serve m --safetensors-load-strategy eager";
    assert!(ids(large, eager, &packages).is_empty());
    let hidden = |bytes| {
        let facts = DoctorFacts { hidden_cma_bytes: bytes, ..on("dgx-spark") };
        let of_it = |finding: &Finding| finding.id.as_deref() == Some("gb10-kexec-handover");
        examine_all(&facts).into_iter().find(of_it)
    };
    // From the reports: CmaTotal 0, CmaFree 940604 kB; and 32 MiB, 9.3 GiB.
    assert!(hidden(Fact::Is(940_604 << 10)).is_none(), "less than the entry asks for");
    let found = hidden(Fact::Is(9_300 << 20)).unwrap();
    assert_eq!((found.check, found.severity), ("kernel", Severity::Warning));
    assert!(hidden(Fact::Is(0)).is_none() && hidden(Fact::Absent).is_none());
    let facts =
        DoctorFacts { hidden_cma_bytes: Fact::Unknown("cannot read".into()), ..on("dgx-spark") };
    let unknown = examine_all(&facts);
    assert!(unknown.iter().any(|one| one.text == "cannot read; not examined: gb10-kexec-handover"));
}

/// The check, the file's text, and the profile.
type Node = (&'static str, String, &'static str);

fn severities((check, text, profile): &Node) -> Vec<Severity> {
    let text = Fact::Is(text.clone());
    let facts = match *check {
        "kernel" => DoctorFacts { kernel: text, ..on(profile) },
        _ => DoctorFacts { driver: text, ..on(profile) },
    };
    let found = of_node(&facts, check);
    assert!(found.iter().all(|one| one.fix.is_some() && one.check == *check), "{found:?}");
    found.iter().map(|one| one.severity).collect()
}

#[test]
fn ranges_of_kernels_and_drivers_begin_and_end_as_in_their_source() {
    use Severity::{Problem, Warning};
    const GB10: &str = "dgx-spark";
    let proprietary = "NVRM version: NVIDIA UNIX aarch64 Kernel Module  580.173.02  Mon";
    let open = |version| {
        let text = "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64 ";
        ("driver", format!("{text} {version}  Release Build"), GB10)
    };
    let kernel = |release: &str| ("kernel", release.to_owned(), GB10);
    let table: [(Node, &[Severity]); 24] = [
        (open("589.99.99"), &[]),
        (open("590.00"), &[Warning]),
        (open("610.43.02"), &[Warning]),
        (open("580.95.05"), &[]),
        (open("454.99"), &[]),
        (open("455.23.04"), &[Warning]),
        (open("460.27.03"), &[Warning]),
        (open("460.27.04"), &[]),
        (open("460.27"), &[Warning]),
        (open("580.173.02"), &[]),
        (("driver", proprietary.to_owned(), GB10), &[Problem]),
        // A discrete GPU may be older than Blackwell.
        (("driver", proprietary.to_owned(), "gh200"), &[]),
        (kernel("6.17.0-1007-nvidia"), &[]),
        (kernel("6.17.0-1008-nvidia"), &[Warning]),
        (kernel("6.17.0-1008-nvidia-64k"), &[Warning]),
        (kernel("6.17.0-1009-nvidia"), &[]),
        (kernel("6.17.0-1008-nvidiax"), &[]),
        (kernel("6.17.0-1008-generic"), &[]),
        (kernel("6.17.0-1021-nvidia"), &[Warning]),
        (kernel("6.17.0-1022-nvidia"), &[]),
        (kernel("7.0.0-1018-nvidia"), &[]),
        (kernel("7.0.0-1019-nvidia"), &[Warning]),
        (kernel("7.0.0-1020-nvidia"), &[]),
        (("kernel", "6.17.0-1008-nvidia".to_owned(), "gh200"), &[]),
    ];
    for (node, expected) in table {
        assert_eq!(severities(&node), expected, "{node:?}");
    }
}

#[test]
fn the_tag_of_an_official_image_names_the_version() {
    let advice = shipped();
    for (image, expected) in [
        ("vllm/vllm-openai:v0.23.0", Some(("vllm", "v0.23.0"))),
        ("docker.io/vllm/vllm-openai:v0.23.0-cu129@sha256:aa", Some(("vllm", "v0.23.0"))),
        ("lmsysorg/sglang:v0.5.6.post1-cu130", Some(("sglang", "v0.5.6.post1"))),
        ("lmsysorg/sglang:spark", None),
        ("vllm/vllm-openai", None),
        ("vllm/vllm-openai-cpu:v0.23.0", None),
        ("nvcr.io/nvidia/vllm:26.06-py3", None),
    ] {
        let versions = advice.of_image(Some(image));
        let known = versions.known.iter().next().map(|(name, text)| (&**name, &**text));
        assert_eq!(known, expected, "{image}");
        assert!(versions.otherwise.contains(image));
    }
}

#[test]
fn a_file_of_advice_may_use_every_condition() {
    let text = "advice:\n- id: a\n  when:\n    machines: [dgx-spark]\n    dgx_os: {from: 7.4.0, \
                before: 7.5.0}\n    page_kib: 4\n  severity: problem\n  cause: breaks\n  cure: \
                update\n  source: https://example.com\n  certainty: documented\n";
    let advice = AdviceTable::parse(&SourceText::new("f", text), &["dgx-spark"]).unwrap();
    let of = |release: Fact<String>| {
        of_node(&DoctorFacts { advice: advice.clone(), dgx_os: release, ..on("dgx-spark") }, "node")
    };
    let [found] = &of(Fact::Is("7.4.1".to_owned()))[..] else { panic!() };
    assert_eq!(found.text, "this node breaks (documented: https://example.com)");
    assert!(of(Fact::Is("7.5.0".to_owned())).is_empty() && of(Fact::Absent).is_empty());
    let [unknown] = &of(Fact::Is("seven".to_owned()))[..] else { panic!() };
    assert_eq!(unknown.severity, Severity::Unknown);
    assert!(unknown.text.contains("not examined: a"), "{unknown:?}");
}

#[test]
fn mistakes_in_a_file_have_their_positions() {
    let entry = |when: &str| {
        format!(
            "advice:\n- id: a\n  when: {when}\n  severity: warning\n  cause: c\n  cure: d\n  \
             source: e\n  certainty: measured\n"
        )
    };
    let twice = format!("{}{}", entry("{page_kib: 4}"), &entry("{page_kib: 4}")[8..]);
    for (text, at, message) in [
        ("", "f:1:1", "the file must be a mapping"),
        ("advise: []", "f:1:1", "unknown key \"advise\""),
        ("images: {}", "f:1:1", "advice is missing"),
        ("advice:\n- id: a\n", "f:2:3", "an entry lacks when"),
        (&entry("{engines: [vlm]}"), "f:3:20", "engines cannot be \"vlm\""),
        (&entry("{}"), "f:3:9", "when has no condition"),
        (&entry("{machines: [spark]}"), "f:3:21", "machines cannot be \"spark\""),
        (&entry("{options: {present: [-x]}}"), "f:3:10", "options needs engines"),
        (&entry("{engines: [vllm], options: {present: [x]}}"), "f:3:47", "\"x\" is no option"),
        (&entry("{driver: {from: x}}"), "f:3:25", "\"x\" is no version of numbers"),
        (&entry("{driver: {from: 600, before: 590}}"), "f:3:19", "the range is empty"),
        (
            &entry("{engines: [vllm], packages: {vllm: {before: latest}}}"),
            "f:3:53",
            "\"latest\" is no version",
        ),
        (&entry("{page_kib: 0}"), "f:3:20", "\"0\" is no number from 1"),
        (&entry("{page_kib: 4}").replace("cause: c", "cause: ''"), "f:5:10", "a text of one line"),
        (&entry("{page_kib: 4}").replace("measured", "sure"), "f:8:14", "certainty cannot be"),
        (&twice, "f:9:3", "two entries with the id \"a\""),
    ] {
        let mistakes = AdviceTable::parse(&SourceText::new("f", text), &["dgx-spark"]).unwrap_err();
        let shown = mistakes.to_string();
        assert!(shown.contains(&format!("{at}: ")), "{at} in {shown}");
        assert!(shown.contains(message), "{message} in {shown}");
    }
}

proptest! {
    #[test]
    fn any_file_is_read_or_refused(
        text in "\\PC{0,200}|(advice:\\n)?[a-z:{}\\[\\], \\n0-9.-]{0,200}",
    ) {
        let _ = AdviceTable::parse(&SourceText::new("f", text), &["dgx-spark"]);
    }
}
