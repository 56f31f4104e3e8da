use clap::Parser;
use proptest::prelude::*;

use super::*;
use crate::config::measure::ListenHost;
use crate::config::mistake::SourceText;

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    flags: RunFlags,
}

fn flags(arguments: &[&str]) -> RunFlags {
    let arguments = std::iter::once("run").chain(arguments.iter().copied());
    Command::try_parse_from(arguments).unwrap_or_else(|error| panic!("{error}")).flags
}

fn refusal(arguments: &[&str]) -> String {
    let arguments = std::iter::once("run").chain(arguments.iter().copied());
    Command::try_parse_from(arguments).err().expect("refused").to_string()
}

fn file(text: &str) -> FileSettings {
    parse_settings(&SourceText::new("umawarden.yaml", text))
        .unwrap_or_else(|error| panic!("{error}"))
}

fn merged(arguments: &[&str], text: &str) -> Settings {
    let folder = Path::new("/etc/umawarden");
    Settings::merge(&flags(arguments), file(text), folder, &Environment::default())
}

const EVERYTHING: &str = r#"
mode: enforce
rule_files: [rules/*.yaml, /srv/more.yaml]
sampling_interval: 50ms
evaluation_interval: 1s
path: {procfs: /host/proc, sysfs: /host/sys, kmsg: kmsg.txt}
web: {listen_address: ["127.0.0.1:1", ":2"], telemetry_path: /m, control_socket: c.sock,
  config_file: web.yml, tokens_file: /t.yml, systemd_socket: true, external_url: http://p/s/}
pause_file: hold
storage:
  path: journal
  retention: {time: 7d, size: 64MiB}
recording: {size: 0, black_box: 0}
gpu: {interval: 2s, library: nvml/libnvidia-ml.so}
log: {level: debug, format: json}
"#;

fn every(milliseconds: u64) -> SamplingInterval {
    SamplingInterval::Every(Duration::from_millis(milliseconds))
}

#[test]
fn everything_has_a_default() {
    let settings = merged(&[], "");
    let expected = Settings {
        mode: Mode::Observe,
        rules: RuleSource::shipped(),
        overrides: Vec::new(),
        sampling_interval: SamplingInterval::Auto,
        evaluation_interval: Duration::from_millis(100),
        path: SystemPaths {
            procfs: "/proc".into(),
            sysfs: "/sys".into(),
            docker_sockets: vec!["/run/docker.sock".into(), PODMAN_SOCKET.into()],
            cri_sockets: CRI_SOCKETS.map(PathBuf::from).to_vec(),
            kmsg: "/dev/kmsg".into(),
        },
        web: WebSettings {
            listen: vec![ListenAddress { host: ListenHost::All, port: 9942 }],
            systemd_socket: false,
            external_url: None,
            telemetry_path: "/metrics".to_owned(),
            control_socket: "data/control.sock".into(),
            config_file: None,
            tokens_file: None,
        },
        storage: Storage {
            path: "data".into(),
            retention_time: Duration::from_secs(30 * 86_400),
            retention_size_bytes: 256 << 20,
        },
        pause_file: "data/paused".into(),
        recording: Recording { size_bytes: 64 << 20, black_box: Duration::from_secs(3_600) },
        gpu: Gpu { interval: GpuInterval::Auto, library: None },
        log: Log { level: LogLevel::Info, format: LogFormat::Text },
        guard_rails: default_guard_rails(),
        named_alerts: Vec::new(),
        engines: Vec::new(),
        restarts: Vec::new(),
        cluster: None,
        starts: StartSettings::default(),
        assessment: AssessmentLimits::default(),
        alertmanager: AlertmanagerSettings::default(),
        kubernetes: None,
        otlp: None,
        nvsentinel: None,
    };
    assert_eq!(settings, expected);
}

#[test]
fn relative_paths_start_at_the_folder_of_the_file() {
    let settings = merged(&[], EVERYTHING);
    assert_eq!(settings.mode, Mode::Enforce);
    assert_eq!(
        settings.rules,
        RuleSource(vec![
            RuleEntry::Path("/etc/umawarden/rules/*.yaml".into()),
            RuleEntry::Path("/srv/more.yaml".into()),
        ])
    );
    assert_eq!(settings.sampling_interval, every(50));
    assert_eq!(settings.evaluation_interval, Duration::from_secs(1));
    assert_eq!(settings.path.procfs, Path::new("/host/proc"));
    assert_eq!(settings.path.kmsg, Path::new("/etc/umawarden/kmsg.txt"));
    assert_eq!(settings.web.listen.len(), 2);
    assert_eq!(settings.web.telemetry_path, "/m");
    assert_eq!(settings.web.control_socket, Path::new("/etc/umawarden/c.sock"));
    assert!(settings.web.systemd_socket);
    assert_eq!(settings.web.external_url.as_deref(), Some("http://p/s"));
    assert_eq!(settings.web.config_file.as_deref(), Some(Path::new("/etc/umawarden/web.yml")));
    assert_eq!(settings.web.tokens_file.as_deref(), Some(Path::new("/t.yml")));
    assert_eq!(settings.pause_file, Path::new("/etc/umawarden/hold"));
    assert_eq!(settings.storage.path, Path::new("/etc/umawarden/journal"));
    assert_eq!(settings.storage.retention_time, Duration::from_secs(7 * 86_400));
    assert_eq!(settings.storage.retention_size_bytes, 64 << 20);
    assert_eq!(settings.gpu.interval, GpuInterval::Every(Duration::from_secs(2)));
    let library = Path::new("/etc/umawarden/nvml/libnvidia-ml.so");
    assert_eq!(settings.gpu.library.as_deref(), Some(library));
    assert_eq!(settings.log, Log { level: LogLevel::Debug, format: LogFormat::Json });
}

#[test]
fn gpu_interval_is_a_duration_or_never() {
    let interval = |text: &str| merged(&[], &format!("gpu: {{interval: {text}}}")).gpu.interval;
    assert_eq!(interval("off"), GpuInterval::Off);
    assert_eq!(interval("auto"), GpuInterval::Auto);
    assert_eq!(merged(&["--gpu.interval=off"], EVERYTHING).gpu.interval, GpuInterval::Off);
    let flag = merged(&["--gpu.library=/l.so"], EVERYTHING).gpu.library;
    assert_eq!(flag.as_deref(), Some(Path::new("/l.so")));
    for wrong in ["10ms", "2h", "never"] {
        let read = refusal(&[&format!("--gpu.interval={wrong}")]);
        assert!(read.contains("or auto, or off"), "{read}");
    }
}

#[test]
fn flags_win_over_the_file() {
    let arguments = [
        "--mode=observe",
        "--rules=a.yaml",
        "--rules=b",
        "--sampling-interval=20ms",
        "--web.listen-address=127.0.0.1:0",
        "--web.listen-address=[::1]:9942",
        "--web.telemetry-path=/n",
        "--web.control-socket=d.sock",
        "--pause-file=stop",
        "--storage.path=here",
        "--storage.retention.time=1d",
        "--storage.retention.size=1GiB",
        "--recording.size=2MiB",
        "--recording.black-box=5m",
        "--path.procfs=p",
        "--path.sysfs=s",
        "--path.docker-socket=e",
        "--path.cri-socket=c",
        "--path.kmsg=k",
        "--log.level=warn",
        "--log.format=text",
    ];
    let settings = merged(&arguments, EVERYTHING);
    assert_eq!(settings.mode, Mode::Observe);
    let paths = ["a.yaml", "b"].map(|path| RuleEntry::Path(path.into()));
    assert_eq!(settings.rules, RuleSource(paths.to_vec()));
    assert_eq!(settings.sampling_interval, every(20));
    let auto = merged(&["--sampling-interval=auto"], EVERYTHING);
    assert_eq!(auto.sampling_interval, SamplingInterval::Auto);
    let file = merged(&[], "sampling_interval: auto\n");
    assert_eq!(file.sampling_interval, SamplingInterval::Auto);
    let listen: Vec<String> = settings.web.listen.iter().map(ToString::to_string).collect();
    assert_eq!(listen, ["127.0.0.1:0", "[::1]:9942"]);
    assert_eq!(settings.web.telemetry_path, "/n");
    assert_eq!(settings.web.control_socket, Path::new("d.sock"));
    assert_eq!(settings.pause_file, Path::new("stop"));
    assert_eq!(settings.storage.path, Path::new("here"));
    assert_eq!(settings.storage.retention_time, Duration::from_secs(86_400));
    assert_eq!(settings.storage.retention_size_bytes, 1 << 30);
    let recording = Recording { size_bytes: 2 << 20, black_box: Duration::from_secs(300) };
    assert_eq!(settings.recording, recording);
    let paths = SystemPaths {
        procfs: "p".into(),
        sysfs: "s".into(),
        docker_sockets: vec!["e".into(), PODMAN_SOCKET.into()],
        cri_sockets: vec!["c".into()],
        kmsg: "k".into(),
    };
    assert_eq!(settings.path, paths);
    assert_eq!(settings.log, Log { level: LogLevel::Warn, format: LogFormat::Text });
}

#[test]
fn the_journal_is_in_the_state_directory_by_default() {
    let environment = Environment {
        state_directory: Some("/var/lib/umawarden".into()),
        ..Environment::default()
    };
    let path = |arguments: &[&str]| {
        let nothing = FileSettings::default();
        Settings::merge(&flags(arguments), nothing, Path::new(""), &environment).storage.path
    };
    assert_eq!(path(&[]), Path::new("/var/lib/umawarden"));
    assert_eq!(path(&["--storage.path=x"]), Path::new("x"));
}

#[test]
fn socket_and_pause_file_are_in_the_folder_of_the_journal() {
    for (arguments, text, folder) in [
        (vec!["--storage.path=x"], "storage: {path: y}", "x"),
        (vec![], "storage: {path: y}", "/etc/umawarden/y"),
        (vec![], "", "data"),
    ] {
        let settings = merged(&arguments, text);
        assert_eq!(settings.web.control_socket, Path::new(folder).join("control.sock"));
        assert_eq!(settings.pause_file, Path::new(folder).join("paused"));
    }
}

#[test]
fn an_empty_rule_list_must_be_explicit() {
    assert_eq!(merged(&[], "rule_files: []").rules, RuleSource(Vec::new()));
    let error = parse_settings(&SourceText::new("f", "rule_files:\n")).expect_err("empty");
    assert!(error.to_string().contains("rule_files is empty"));
}

#[test]
fn bad_flags_are_refused_with_the_reason() {
    for (argument, reason) in [
        ("--sampling-interval=5ms", "out of bounds: from 10ms to 1s"),
        ("--sampling-interval=2s", "out of bounds"),
        ("--sampling-interval=fast", "is not a duration"),
        ("--sampling-interval=Auto", "or auto"),
        ("--web.listen-address=9942", "it has no port"),
        ("--web.telemetry-path=metrics", "begin with /"),
        ("--storage.retention.time=0", "out of bounds"),
        ("--storage.retention.size=1KiB", "less than 1MiB"),
        ("--recording.size=1KiB", "0 is for no recording"),
        ("--recording.black-box=5s", "from 1m to 1d; 0 is for no black box"),
        ("--mode=force", "enforce"),
        ("--log.level=loud", "possible values"),
        ("--sampling-intervall=1s", "--sampling-interval"),
    ] {
        let refusal = refusal(&[argument]);
        assert!(refusal.contains(reason), "{argument}: {refusal}");
    }
}

#[test]
fn all_mistakes_of_a_configuration_file_are_reported_together() {
    let text = "mdoe: observe\nsampling_interval: 5\nrule_files: [[], '']\n\
                web:\n  listen_address: [':1', nowhere, ':x']\nlog: {level: loud}\n\
                storage: [data]\n";
    let error = parse_settings(&SourceText::new("f", text)).expect_err("mistakes");
    let found: Vec<String> =
        error.0.iter().map(|m| format!("{}:{} {}", m.line, m.column, m.message)).collect();
    let begins = [
        "1:1 unknown key \"mdoe\" in the configuration",
        "2:20 sampling_interval: \"5\" is not a duration",
        "3:14 an entry of rule_files must be text, but this is a list",
        "3:18 an entry of rule_files: a path cannot be empty",
        "5:26 listen_address: \"nowhere\" is not an address",
        "5:35 listen_address: \":x\" is not an address",
        "6:14 level cannot be \"loud\"",
        "7:10 storage must be a mapping",
    ];
    assert_eq!(found.len(), begins.len(), "{found:#?}");
    for (found, begin) in found.iter().zip(begins) {
        assert!(found.starts_with(begin), "{found}\nshould begin with\n{begin}");
    }
}

#[test]
fn likely_mistakes_are_reported_with_a_correction() {
    for (text, hint) in [
        (
            "rules: a.yaml",
            "write rule_files: [shipped, my.yaml] to load files, and rules: {GROUP/ALERT: {mode: \
             observe}} to override rules",
        ),
        ("groups: []", "this is a rule file: name it under rule_files"),
        ("listen_address: ':1'", "it belongs to web"),
        ("log: debug", "its keys: level, format"),
        ("storage: {retention: 15d}", "its keys: time, size"),
        ("log: {level: loud}", "write one of: error, warn, info, debug, trace"),
    ] {
        let mistakes = parse_settings(&SourceText::new("f", text)).expect_err(text).0;
        assert_eq!(mistakes[0].hint.as_deref(), Some(hint), "{text}");
    }
}

/// [`EVERYTHING`] with a few characters replaced, and its end cut off.
fn damaged() -> impl Strategy<Value = String> {
    let edits = prop::collection::vec((any::<prop::sample::Index>(), any::<char>()), 0..8);
    (edits, any::<prop::sample::Index>(), any::<bool>()).prop_map(|(edits, end, cut)| {
        let mut text: Vec<char> = EVERYTHING.chars().collect();
        for (at, character) in edits {
            let at = at.index(text.len());
            text[at] = character;
        }
        if cut {
            text.truncate(end.index(text.len()));
        }
        text.into_iter().collect()
    })
}

proptest! {
    #[test]
    fn damaged_files_are_read_or_refused_with_a_position(text in damaged()) {
        if let Err(mistakes) = parse_settings(&SourceText::new("f", text.as_str())) {
            for mistake in mistakes.0 {
                prop_assert!((1..=text.matches('\n').count() + 1).contains(&mistake.line));
                prop_assert!(mistake.to_string().chars().all(|c| c == '\n' || !c.is_control()));
            }
        }
    }

    #[test]
    fn arbitrary_settings_are_read_or_refused(
        key in prop::sample::select(vec![
            "mode", "rule_files", "sampling_interval", "path", "web", "storage", "log", "other",
        ]),
        value in "(\\{|\\[|'|\"|&a|\\*a|[a-z0-9{}:,/. ])(\\}|\\]|[ -~]){0,20}",
    ) {
        let _ = parse_settings(&SourceText::new("f", format!("{key}: {value}")));
    }

    #[test]
    fn arbitrary_flags_are_accepted_or_refused(
        flag in "--(mode|rules|sampling-interval|web\\.[a-z-]{1,14}|storage\\.[a-z.]{1,16}|log\\.level)",
        value in "(?s).{0,12}",
    ) {
        let _ = Command::try_parse_from(["run", &format!("{flag}={value}")]);
    }
}

#[test]
fn the_otlp_flag_wins_and_relative_paths_start_at_the_folder() {
    let text = "otlp: {endpoint: 'https://a', headers_file: h, interval: 1m}";
    let otlp = merged(&["--otlp.endpoint", "http://b:4318/"], text).otlp.unwrap();
    assert_eq!((&*otlp.endpoint, otlp.interval), ("http://b:4318", Duration::from_secs(60)));
    assert_eq!(otlp.headers_file.as_deref(), Some(Path::new("/etc/umawarden/h")));
    let otlp = merged(&["--otlp.endpoint=http://b"], "").otlp.unwrap();
    assert_eq!(otlp, OtlpSettings::to("http://b".to_owned()));
}

#[test]
fn grades_are_enforced_by_name_and_fit_the_mode() {
    use crate::model::{Grade, Grades, Mode};
    let all = Grades::default();
    let some: Grades = [Grade::Notice, Grade::Drop].into_iter().collect();
    let none: Grades = [].into_iter().collect();
    for (text, flags, mode, grades) in [
        ("", &[][..], Mode::Observe, &all),
        ("mode: enforce", &[], Mode::Enforce, &all),
        ("enforce: [drop, notice]", &[], Mode::Enforce, &some),
        ("mode: enforce\nenforce: [notice, drop]", &[], Mode::Enforce, &some),
        ("enforce: []", &[], Mode::Observe, &none),
        ("mode: observe\nenforce: []", &[], Mode::Observe, &none),
        ("enforce: [drop, notice]", &["--mode=observe"], Mode::Observe, &some),
        ("enforce: [drop, notice]", &["--mode=enforce"], Mode::Enforce, &some),
    ] {
        let merged = merged(flags, text);
        assert_eq!((merged.mode, &merged.guard_rails.enforced), (mode, grades), "{text} {flags:?}");
    }
    for (text, message) in [
        ("mode: observe\nenforce: [drop]", "mode is observe, and enforce names drop"),
        ("mode: enforce\nenforce: []", "mode is enforce, and enforce names no grade"),
        ("enforce: [drop, reboott]", "reboott"),
        ("enforce: drop", "enforce must be a list of grades"),
    ] {
        let mistakes = parse_settings(&SourceText::new("f", text)).expect_err(text);
        assert!(mistakes.to_string().contains(message), "{mistakes}");
    }
}
