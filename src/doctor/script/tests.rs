use std::collections::BTreeMap;
use std::io;

use proptest::prelude::*;

use super::super::tests::shipped;
use super::super::{UnitFacts, unit};
use super::*;
use crate::model::EngineKind;

/// A unit that runs a command, with these scripts.
fn read(command: &str, scripts: &[(&str, &str)]) -> UnitFacts {
    let unit = read_unit(&format!("[Service]\nExecStart={command}\n"), scripts);
    unit.unwrap_or_else(|| panic!("no engine in {command}"))
}

fn read_unit(text: &str, scripts: &[(&str, &str)]) -> Option<UnitFacts> {
    let scripts: BTreeMap<&str, &str> = scripts.iter().copied().collect();
    unit("x.service", &[text.to_owned()], &shipped(), &mut |path| {
        let found = path.to_str().and_then(|path| scripts.get(path));
        let missing = || io::Error::new(io::ErrorKind::NotFound, "no such file");
        found.map(|text| text.as_bytes().to_vec()).ok_or_else(missing)
    })
}

/// The commands of a script that may start something, without exported variables.
fn commands(text: &str) -> Vec<String> {
    let mut open = |_: &Path| Ok(format!("#!/bin/sh\n{text}").into_bytes());
    let words = ["/x/s.sh".to_owned(), "one".to_owned(), "two 2".to_owned()];
    let found = ScriptReader::new(&mut open).unit_command(&words, &[], Some("/srv"));
    found.commands.iter().map(|command| command.words.join("|")).collect()
}

const SGLANG: &str = "#!/bin/bash
set -euo pipefail
# docker run wrong/image vllm serve wrong
MODEL=/data/models/qwen
PORT=${PORT:-30000}
ARGS=(--model-path \"$MODEL\"
  --host 0.0.0.0 # everywhere
)
ARGS+=(--load-format fastsafetensors)
docker rm -f sglang >/dev/null 2>&1 || true
exec docker run --rm --name sglang --gpus all \\
  -v /data:/data -p \"$PORT:30000\" \\
  lmsysorg/sglang:spark \\
  python3 -m sglang.launch_server \"${ARGS[@]}\" --port \"$PORT\"
";

#[test]
fn the_unit_of_the_field_is_read_through_its_script() {
    let unit = read("/data/scripts/sglang-fg.sh", &[("/data/scripts/sglang-fg.sh", SGLANG)]);
    assert_eq!(unit.engine, Some(EngineKind::Sglang));
    assert!(unit.is_container && unit.unseen.is_empty(), "{unit:?}");
    let [started] = &unit.starts[..] else { panic!("{unit:?}") };
    assert_eq!(started.loader.name, "fastsafetensors");
    assert!(started.options.contains("--model-path") && !started.options.contains("--name"));
    assert!(started.versions.otherwise.contains("lmsysorg/sglang:spark"));
}

#[test]
fn commands_are_found_behind_what_wraps_them() {
    let vllm = "vllm|serve|/m|--port|1";
    for line in [
        "vllm serve /m --port 1",
        "exec vllm serve /m --port 1",
        "if true; then vllm serve /m --port 1; fi",
        "start() { vllm serve /m --port 1; }",
        "( cd /tmp && vllm serve /m --port 1 ) &",
        "vllm serve /m \\\n  --port \\\n  1",
        "vllm serve \"/m\" '--port' 1 >/var/log/x 2>&1 </dev/null",
        "vllm serve /m --port 1 # and no more",
        "P=1\nvllm serve /m --port $P",
        "P=1\nvllm serve /m --port \"${P}\"",
        "vllm serve /m --port ${P:-1}",
        "ARGS=\"/m --port 1\"\nvllm serve $ARGS",
        "A=(/m)\nA+=(--port 1)\nvllm serve \"${A[@]}\"",
        "eval \"vllm serve /m --port 1\"",
        "bash -c 'vllm serve /m --port 1'",
        "PID=$(vllm serve /m --port 1)",
        "cat <<EOF\nvllm serve wrong\nEOF\nvllm serve /m --port 1",
        "cat <<-'E'\n\tllama-server -m wrong\n\tE\nvllm serve /m --port 1",
        "for x in 1 2; do vllm serve /m --port 1; done",
        "case $1 in\n  start) vllm serve /m --port 1 ;;\nesac",
        "vllm serve /m ${DEBUG:+--debug} --port 1",
    ] {
        let found = commands(line);
        assert!(found.iter().any(|command| command.ends_with(vllm)), "{line}: {found:?}");
        assert!(!found.iter().any(|command| command.contains("wrong")), "{line}: {found:?}");
    }
    for line in [
        "echo vllm serve /m",
        "pgrep -f 'vllm serve'",
        "docker pull vllm/vllm-openai:v0.29.0",
        "docker stop vllm/vllm-openai",
        "# vllm serve /m",
        "true || printf '%s' vllm serve",
    ] {
        let read: Vec<_> = commands(line)
            .into_iter()
            .filter(|line| {
                LaunchCommand::read(&line.split('|').map(str::to_owned).collect::<Vec<_>>())
                    .is_some()
            })
            .collect();
        assert!(read.is_empty(), "{line}: {read:?}");
    }
}

#[test]
fn arguments_and_exported_variables_reach_what_a_script_starts() {
    assert_eq!(commands("x \"$1\" $2 \"$@\" $#"), ["x|one|two|2|one|two 2|$"]);
    assert_eq!(commands("export A=1\nB=2\nC=3 x"), ["A=1|C=3|x"]);
    assert_eq!(commands("set -a\nA=1\nx"), ["A=1|x"]);
    assert_eq!(commands("shift\nx $1"), ["x|two|2"]);
    assert_eq!(commands("x '$1' \"\\$1\" \\$1 \"a  b\""), ["x|$1|$1|$1|a  b"]);
    let unit = read_unit(
        "[Service]\nEnvironment=MODEL=/m \"FORMAT=instanttensor\"\nExecStart=/x/a.sh --port 1\n",
        &[
            (
                "/x/a.sh",
                "#!/bin/sh\nDIR=\"$(cd \"$(dirname \"$0\")\" && pwd)\"\nexec \"$DIR/b.sh\" \"$@\"\n",
            ),
            (
                "/x/b.sh",
                "#!/usr/bin/env bash\n. /x/env\nvllm serve $MODEL --load-format $FORMAT $MORE \
                 \"$@\"\n",
            ),
            ("/x/env", "MORE=--enforce-eager\n"),
        ],
    )
    .unwrap();
    let [started] = &unit.starts[..] else { panic!("{unit:?}") };
    assert_eq!(started.loader.name, "instanttensor");
    assert!(started.options.contains("--enforce-eager") && started.options.contains("--port"));
    assert!(unit.unseen.is_empty(), "{unit:?}");
}

#[test]
fn what_is_not_evaluated_is_named_with_its_place() {
    let script = "#!/bin/sh\nMODEL=$(find /data -name x)\nvllm serve \"$MODEL\" $UNSET \\\n  \
                  `date` ${A%b}\n";
    let unit = read("/x/s.sh", &[("/x/s.sh", script)]);
    assert_eq!(
        unit.unseen,
        [
            "/x/s.sh: line 3: $MODEL is not known: $(…) is not evaluated in line 2",
            "/x/s.sh: line 3: $UNSET is not set here",
            "/x/s.sh: line 3: $(…) is not evaluated",
            "/x/s.sh: line 3: an expansion is not evaluated",
        ]
    );
    // Of commands that start no engine, nothing is named.
    let quiet = read("/x/s.sh", &[("/x/s.sh", "#!/bin/sh\nx $UNSET $(date)\nvllm serve m\n")]);
    assert!(quiet.unseen.is_empty(), "{quiet:?}");
}

#[test]
fn files_that_cannot_be_read_are_named_and_others_are_not() {
    let unit = |error: fn() -> io::Result<Vec<u8>>| {
        let text = "[Service]\nExecStart=/x/s.sh\n".to_owned();
        unit("x.service", &[text], &shipped(), &mut |_| error())
    };
    let refused = unit(|| Err(io::Error::from(io::ErrorKind::PermissionDenied))).unwrap();
    assert_eq!(refused.unseen, ["cannot read /x/s.sh: permission denied"]);
    assert_eq!(refused.engine, None);
    let large = unit(|| Ok([b"#!/bin/sh\n".to_vec(), vec![b' '; MOST_SCRIPT_BYTES]].concat()));
    assert_eq!(large.unwrap().unseen, ["/x/s.sh is not read: it is larger than 256 KiB"]);
    assert!(unit(|| Err(io::Error::from(io::ErrorKind::NotFound))).is_none());
    assert!(unit(|| Ok(vec![0x7f; MOST_SCRIPT_BYTES + 1])).is_none(), "a program");
    assert!(unit(|| Ok(b"#!/usr/bin/python3\nvllm serve m\n".to_vec())).is_none());
}

#[test]
fn gates_and_launches_of_scripts_count() {
    let script = "#!/bin/sh\nsudo umawarden gate --need 90GiB --timeout 5m\nexec vllm serve m\n";
    let gated = read("/x/s.sh", &[("/x/s.sh", script)]);
    assert_eq!(gated.before_start, ["umawarden gate --need 90GiB --timeout 5m"]);
    let script = "#!/bin/sh\nexec umawarden launch --need 90GiB -- vllm serve m\n";
    let launched = read("/x/s.sh", &[("/x/s.sh", script)]);
    assert!(launched.is_launched && launched.engine == Some(EngineKind::Vllm), "{launched:?}");
}

#[test]
fn services_of_a_compose_file_are_read() {
    let compose = "\
services:
  chat:
    image: vllm/vllm-openai:${TAG:-v0.23.0}
    command: >
      --model m
      --load-format instanttensor
    environment:
      - A=1
  db:
    image: postgres
";
    for command in [
        "/usr/bin/docker compose -f /srv/c.yaml up",
        "/usr/bin/docker-compose --file=/srv/c.yaml up --build",
    ] {
        let unit = read(command, &[("/srv/c.yaml", compose)]);
        assert_eq!(unit.engine, Some(EngineKind::Vllm), "{command}");
        assert_eq!(unit.starts[0].loader.name, "instanttensor");
        assert_eq!(unit.starts[0].versions.known["vllm"], "v0.23.0");
    }
    let text = "[Service]\nWorkingDirectory=/srv\nExecStart=docker compose up\n";
    let unit = read_unit(text, &[("/srv/docker-compose.yml", compose)]).unwrap();
    assert_eq!(unit.engine, Some(EngineKind::Vllm));
    assert!(unit.unseen.is_empty(), "the names that are missing are usual: {unit:?}");
    let broken = read("docker compose -f /srv/c.yaml up", &[("/srv/c.yaml", "services: [")]);
    assert!(broken.unseen[0].starts_with("/srv/c.yaml: line 1"), "{broken:?}");
}

#[test]
fn scripts_that_start_each_other_end() {
    let loops =
        [("/x/a.sh", "#!/bin/sh\n/x/b.sh\nvllm serve m\n"), ("/x/b.sh", "#!/bin/sh\n. /x/a.sh\n")];
    let unit = read("/x/a.sh", &loops);
    assert_eq!(unit.starts.len(), 1, "{unit:?}");
    let mut opened = 0;
    let mut open = |path: &Path| {
        opened += 1;
        Ok(format!("#!/bin/sh\n{0}x.sh\n{0}y.sh\n", path.display()).into_bytes())
    };
    let found = ScriptReader::new(&mut open).unit_command(&["/a/s.sh".to_owned()], &[], None);
    assert!(opened <= MOST_FILES);
    assert!(found.unread.iter().any(|text| text.contains("too many scripts")), "{found:?}");
}

#[test]
fn a_script_that_is_not_read_to_its_end_is_named() {
    let long = format!("#!/bin/sh\n{}vllm serve m\n", "x\n".repeat(MOST_COMMANDS));
    let wide = format!("#!/bin/sh\nA={}\nvllm serve {}\n", "a".repeat(9000), "$A ".repeat(600));
    for text in [&long, &wide] {
        let unit = read("/x/s.sh", &[("/x/s.sh", text)]);
        assert_eq!(unit.engine, None);
        assert_eq!(unit.unseen, ["/x/s.sh is not read to its end: it is too large"]);
    }
}

#[test]
fn hostile_scripts_are_bounded() {
    let doubling = format!("#!/bin/sh\nA=aaaaaaaa\n{}vllm serve $A\n", "A=$A$A\n".repeat(200));
    let many = format!("#!/bin/sh\nA={}\n{}", "a ".repeat(8000), "x $A $A $A $A\n".repeat(5000));
    let nested = format!("#!/bin/sh\n{}", "$(".repeat(50_000));
    let defaults = format!("#!/bin/sh\nvllm serve {}", "${A:-".repeat(20_000));
    let grown = "A=aaaaaaaa\n".to_owned() + &"A=$A$A\n".repeat(12);
    let names: String = (0..1500).map(|name| format!("export V{name}=$A\n")).collect();
    let all = format!("#!/bin/sh\n{grown}{names}{}", "P=1 x $A\n".repeat(4000));
    let wide = format!("#!/bin/sh\n{grown}x {}\n", "$A ".repeat(60_000));
    let lists = format!("#!/bin/sh\nA=(a b)\n{}x", "A=(\"${A[@]}\" \"${A[@]}\")\n".repeat(4000));
    let began = std::time::Instant::now();
    for text in [
        &all,
        &wide,
        &lists,
        "#!/bin/sh\nvllm serve \"never closed",
        "#!/bin/sh\nvllm serve 'never closed",
        "#!/bin/sh\nvllm serve $(never closed",
        "#!/bin/sh\nA=(never closed",
        "#!/bin/sh\ncat <<EOF\nnever ended",
        "#!/bin/sh\n\\",
        "#!/bin/sh\nvllm serve ${",
        "#!/bin/sh\n<<<<>>>>&&&&||||;;;;(((())))",
        "\u{0}ELF vllm serve m",
        "#!/usr/bin/python3\nvllm serve m\n",
        &doubling,
        &many,
        &nested,
        &defaults,
    ] {
        let unit = read_unit("[Service]\nExecStart=/x/s.sh\n", &[("/x/s.sh", text)]);
        if let Some(unit) = unit {
            assert!(unit.starts.len() <= 1 && unit.unseen.len() <= 2 * MOST_NAMED, "{unit:?}");
        }
    }
    assert!(began.elapsed().as_secs() < 60, "{:?}", began.elapsed());
    let binary = read_unit("[Service]\nExecStart=/x/s.sh\n", &[("/x/s.sh", "\u{0}vllm serve m")]);
    assert!(binary.is_none(), "{binary:?}");
}

/// Words that bash passes to a command, and that a reader of its text can know.
#[test]
fn words_are_those_that_bash_passes() {
    for (before, words) in [
        ("", "a 'b c' \"d e\" f\\ g \"h\"'i'j"),
        ("", "'' \"\" a''b"),
        ("", "\"a\\\"b\" \"\\$x\" '\\' \"\\\\\" \"\\n\""),
        ("", "\"$1\" $2 \"$2\" \"$@\" \"x$@y\""),
        ("", "$'a' \"$\" $"),
        ("", "a#b c # d"),
        ("", "a\\\nb \\\n c"),
        ("", "a >/dev/null 2>&1 b"),
        ("", "a </dev/null b 3</dev/null"),
        ("A=1", "$A \"$A\" '$A' ${A}x \"${A}\"x"),
        ("A='a  b'", "$A \"$A\" x$A y\"$A\"z"),
        ("A=' a '", "x$A-y"),
        ("A=1 B=2", "$A$B \"$A $B\""),
        ("A=1\nA+=2", "$A"),
        ("A=(a 'b c')\nA+=(d)", "\"${A[@]}\" x"),
        ("A=(\n a # no\n b\n)", "\"${A[@]}\""),
        ("A=x", "${A:-y} ${B:-z} \"${B:-u v}\" ${B-w}"),
        ("A=x", "${A:+y} ${B:+z} c \"${A:+p q}\""),
        ("A=1", "${B:-$A} ${B:-${A}2}"),
        ("export A=1 B='x y'\nreadonly C=3", "$A \"$B\" $C"),
        ("cat >/dev/null <<E\nA=2\nE\nA=1", "$A"),
        ("if true; then A=1; fi", "$A"),
        ("f() { A=1; }\nf", "$A"),
        ("shift", "$1"),
        ("A=ü", "\"$A\" é"),
    ] {
        let ours = commands(&format!("{before}\nzz {words}"));
        let ours = ours.iter().rfind(|line| line.contains("zz|")).unwrap();
        let (_, ours) = ours.split_once("zz|").unwrap();
        let script = format!("{before}\nzz() {{ printf '|%s' \"$@\" >&9; }}\nzz {words}\n");
        let output = std::process::Command::new("bash")
            .args(["-c", &format!("exec 9>&1\n{script}"), "bash", "one", "two 2"])
            .output()
            .unwrap();
        let theirs = String::from_utf8(output.stdout).unwrap();
        assert_eq!(format!("|{ours}"), theirs, "{before}; zz {words}");
    }
}

proptest! {
    #[test]
    fn any_script_is_read(
        text in "(\\PC|\\n){0,300}|[$(){}'\"`<>&|;=#\\\\ \\na-c\\[\\]@:+-]{0,300}",
    ) {
        let script = format!("#!/bin/sh\n{text}\nvllm serve m\n");
        let found = commands(&script);
        prop_assert!(found.len() <= MOST_COMMANDS);
        let unit = read_unit("[Service]\nExecStart=/x/s.sh\n", &[("/x/s.sh", &script)]);
        if let Some(unit) = unit {
            prop_assert!(unit.unseen.iter().all(|text| !text.chars().any(char::is_control)));
        }
    }

    #[test]
    fn plain_words_are_read_as_they_are(
        words in prop::collection::vec("[a-z0-9/._-]{1,12}", 1..8),
    ) {
        let line = format!("zz {}", words.join(" "));
        prop_assert_eq!(commands(&line), [format!("zz|{}", words.join("|"))]);
        let quoted = format!("zz '{}'", words.join("' '"));
        prop_assert_eq!(commands(&quoted), [format!("zz|{}", words.join("|"))]);
    }
}
