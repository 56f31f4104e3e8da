use proptest::prelude::*;

use super::*;

const STAT: &str =
    "1786 (vllm) S 1 1786 997 0 -1 4194304 9 0 0 0 120 30 0 0 20 0 3 0 2637123 1 2 3";

#[test]
fn a_process_is_read_despite_hostile_names() {
    let plain = stat(STAT.as_bytes()).unwrap();
    let expected = Stat {
        comm: "vllm".to_owned(),
        state: 'S',
        parent: 1,
        is_kernel: false,
        is_exiting: false,
        cpu_ticks: 150,
        start_ticks: 2_637_123,
        resident_pages: 2,
    };
    assert_eq!(plain, expected);
    for name in ["a) R 7 (", "a\nb", "((((", ")", "sglang::schedul", "", "\u{1b}[2J"] {
        let hostile = stat(STAT.replace("vllm", name).as_bytes()).unwrap();
        assert_eq!((hostile.parent, hostile.start_ticks), (1, 2_637_123), "{name:?}");
        assert!(hostile.comm.chars().all(|c| !c.is_control()), "{name:?}");
    }
    let kernel = stat(STAT.replace("4194304", "2129984").as_bytes()).unwrap();
    assert!(kernel.is_kernel);
    let exiting = stat(STAT.replace("4194304", "4194308").as_bytes()).unwrap();
    assert!(exiting.is_exiting && !exiting.is_kernel);
}

#[test]
fn the_pid_in_the_innermost_namespace_comes_last() {
    assert_eq!(own_pid(b"Name:\tx\nNSpid:\t4242\t57\n"), Some(57));
    assert_eq!(own_pid(b"NSpid:\t7"), Some(7));
    assert!(is_in_inner_namespace(b"Name:\tx\nNSpid:\t4242\t57\n"));
    assert!(!is_in_inner_namespace(b"NSpid:\t7\n") && !is_in_inner_namespace(b"Name:\tx\n"));
    for status in ["", "NSpid:\n", "NSpid:\tx\n", "NSpid:\t7\t-1\n"] {
        assert_eq!(own_pid(status.as_bytes()), None, "{status:?}");
    }
}

#[test]
fn a_process_belongs_to_its_real_user() {
    let status = |uid: &str| format!("Name:\tUid: 7\nUmask:\t0022\nUid:{uid}\nGid:\t5\n");
    assert_eq!(real_user(status("\t1000\t0\t0\t0").as_bytes()), Some(1000));
    for odd in ["", "\t", "\tx", "\t-1", "\t4294967296"] {
        assert_eq!(real_user(status(odd).as_bytes()), None, "{odd:?}");
    }
    assert_eq!(real_user(b""), None);
}

#[test]
fn a_truncated_line_is_no_process() {
    for end in 0..STAT.len() - 6 {
        assert_eq!(stat(&STAT.as_bytes()[..end]), None, "{end}");
    }
}

#[test]
fn unprintable_characters_are_escaped() {
    assert_eq!(printable(b"a\x1b[31m\xff\\"), "a\\x1b[31m\\xff\\\\");
    assert_eq!(printable("\u{202e}gpj.exe".as_bytes()), "\\u{202e}gpj.exe");
    assert_eq!(printable("größe".as_bytes()), "größe");
}

#[test]
fn arguments_end_where_the_title_ends() {
    let title = b"VLLM::EngineCore\0\0\0\0";
    assert_eq!(arguments(title), ["VLLM::EngineCore"]);
    assert_eq!(arguments(b"vllm: a b   \0\0"), ["vllm: a b"]);
    assert_eq!(arguments(b"a\0\0b\0"), ["a", "", "b"]);
    assert!(arguments(b"").is_empty() && arguments(b"\0\0").is_empty());
}

#[test]
fn resident_memory_is_in_bytes_and_absent_for_dying_processes() {
    let text =
        b"Name:\tx\\nRssAnon:\t9 kB\nRssAnon:\t   13284 kB\nRssFile:\t 8 kB\nRssShmem:\t0 kB\n\
        HugetlbPages:\t 2048 kB\n";
    let read = resident(text);
    let expected = Resident {
        anon: Some(13_284 << 10),
        file: Some(8 << 10),
        shmem: Some(0),
        hugetlb: Some(2 << 20),
    };
    assert_eq!(read, expected);
    let none = Resident { anon: None, file: None, shmem: None, hugetlb: None };
    assert_eq!(resident(b"Name:\tx\nState:\tZ (zombie)\n"), none);
    assert_eq!(read_amounts(b"rchar: 12\nread_bytes: 7\n"), (Some(7), Some(12)));
    assert_eq!(read_amounts(b"rchar: -1\n"), (None, None));
}

#[test]
fn the_control_group_is_that_of_the_one_hierarchy_or_of_memory() {
    assert_eq!(cgroup("0::/system.slice/a.service\n"), Some("/system.slice/a.service"));
    let hybrid = "12:cpu,cpuacct:/c\n4:memory:/docker/ab\n1:name=systemd:/init.scope\n0::/\n";
    assert_eq!(cgroup(hybrid), Some("/docker/ab"));
    assert_eq!(cgroup("0::/\n"), Some("/"));
    assert_eq!(cgroup("0::/a:b\n"), Some("/a:b"));
    for outside in ["0::/../b\n", "", "x::/a", "::/a", "0::a"] {
        assert_eq!(cgroup(outside), None, "{outside:?}");
    }
    assert_eq!(unit("/system.slice/a.service/sub"), Some("a.service"));
    assert_eq!(unit("/user.slice/user-0.slice/session-1.scope"), Some("session-1.scope"));
    assert_eq!(unit("/.service/x"), None);
    assert_eq!(system_unit("/system.slice/a.service/b.service"), Some("a.service"));
    assert_eq!(system_unit("/system.slice/system-x.slice/x@1.service"), Some("x@1.service"));
    for path in [
        "/",
        "/system.slice",
        "/.service/x",
        "/a.service",
        "/system.slice/.service",
        "/docker/1/system.slice/a.service",
        "/user.slice/user-0.slice/session-1.scope",
        "/user.slice/user-0.slice/user@0.service/app.slice/a.service",
        "/user.slice/a.service",
    ] {
        assert_eq!(system_unit(path), None, "{path}");
    }
    let user = "/user.slice/user-0.slice/user@0.service/app.slice/a.service";
    let units: Vec<&str> = system_units(user).collect();
    assert_eq!(units, ["user.slice", "user-0.slice", "user@0.service"]);
    assert!(is_within("/a/b", "/a") && is_within("/a", "/a") && !is_within("/ab", "/a"));
}

#[test]
fn mapped_files_are_read_with_their_size() {
    let text = b"7f0000000000-7f0000200000 r--s 00000000 08:01 12  /m/a b.safetensors\n\
        7f0000200000-7f0000300000 rw-p 00000000 00:00 0 \n\
        7f0000300000-7f0000301000 r--s 0 08:01 3 /m/c.gguf (deleted)\n\
        zz-7f /x\n7f0000301000-7f0000300000 r--s 0 08:01 3 /backwards\n\
        7fff0000-7fff1000 r-xp 0 0 0 [vdso]\n";
    let found: Vec<(u64, &str)> = mapped_files(text).collect();
    assert_eq!(found, [(2 << 20, "/m/a b.safetensors"), (4096, "/m/c.gguf")]);
}

#[test]
fn listeners_are_found_by_port_and_state() {
    let text = b"  sl  local_address rem_address   st\n\
        0: 0100007F:7A05 00000000:0000 0A 0:0\n 1: 0100007F:7A06 0100007F:1234 01 0:0\n\
        2: 00000000000000000000000001000000:1F40 0:0 0A\n";
    let on = |port| listening(text, port).map(|at| at.to_string()).collect::<Vec<_>>();
    assert_eq!((on(0x7a05), on(0x1f40)), (vec!["127.0.0.1".to_owned()], vec!["::1".to_owned()]));
    assert!(on(0x7a06).is_empty(), "it is connected");
    assert!(on(0x05).is_empty() && listening(b"", 1).next().is_none());
    let others = b"0: 0201A8C0:1F40 0:0 0A\n1: 0000000000000000FFFF00000100007F:1F40 0:0 0A\n\
        2: 0000:1F40 0:0 0A\n3: zz:1F40 0:0 0A\n";
    let read: Vec<String> = listening(others, 8000).map(|at| at.to_string()).collect();
    assert_eq!(read, ["192.168.1.2", "127.0.0.1"], "anything else is left out");
}

#[test]
fn a_variable_is_found_by_its_whole_name() {
    let text = b"MY_OLLAMA_HOST=no\0OLLAMA_HOST=0.0.0.0:1\x1b\0OLLAMA_HOST=later\0X";
    assert_eq!(variable(text, "OLLAMA_HOST").as_deref(), Some("0.0.0.0:1\\x1b"));
    assert_eq!(variable(text, "OLLAMA"), None);
    assert_eq!(variable(text, "X"), None);
}

#[test]
fn the_user_is_known_only_if_all_four_ids_agree() {
    let status = |ids: &str| format!("Name:\tUid:\t0 0 0 0\nUid:\t{ids}\nGid:\t0\n").into_bytes();
    assert_eq!(user_id(&status("1000\t1000\t1000\t1000")), Some(1000));
    assert_eq!(user_ids(&status("1000\t0\t0\t0")), Some([1000, 0, 0, 0]));
    for ids in ["1000\t0\t0\t0", "0\t0\t0", "0\t0\t0\t0\t0", "", "-1\t-1\t-1\t-1"] {
        assert_eq!(user_id(&status(ids)), None, "{ids}");
    }
}

#[test]
fn a_socket_is_read_with_its_maker_and_its_ends_and_accepts_what_may_reach_it() {
    let text =
        b"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  \
        timeout inode\n   0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000 \
        65534        0 91 1 0 100 0 0 10 0\n   1: 00000000:1F40 00000000:0000 01 \
        00000000:00000000 00:00000000 00000000     0        0 92 1 0 100 0 0 10 0\n";
    let end = |text: &str| text.parse::<SocketAddr>().unwrap();
    let on = |local: &str| TcpSocket {
        local: SocketAddr::new(local.parse().unwrap(), 8000),
        remote: end("0.0.0.0:0"),
        is_listening: true,
        uid: 0,
        inode: 1,
    };
    let all: Vec<TcpSocket> = tcp_sockets(text).collect();
    if cfg!(target_endian = "little") {
        let listens = TcpSocket { uid: 65_534, inode: 91, ..on("127.0.0.1") };
        let connected = TcpSocket { is_listening: false, inode: 92, ..on("0.0.0.0") };
        assert_eq!(all, [listens, connected]);
    }
    for (at, to, accepts) in [
        ("127.0.0.1", "127.0.0.1", true),
        ("0.0.0.0", "127.0.0.1", true),
        ("::", "127.0.0.1", true),
        ("::", "::1", true),
        ("0.0.0.0", "::1", false),
        ("::1", "127.0.0.1", false),
        ("10.0.0.1", "127.0.0.1", false),
    ] {
        assert_eq!(on(at).accepts(to.parse().unwrap()), accepts, "{at} {to}");
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_neither_panic_nor_give_absent_values(
        text in prop::collection::vec(any::<u8>(), 0..400),
        at in 0..90_usize,
    ) {
        let mut damaged = STAT.as_bytes().to_vec();
        damaged.splice(at.min(damaged.len()).., text.iter().copied());
        for text in [&text, &damaged] {
            if let Some(stat) = stat(text) {
                prop_assert!(stat.comm.chars().all(|c| !c.is_control()));
            }
            prop_assert!(arguments(text).iter().flat_map(|a| a.chars()).all(|c| !c.is_control()));
            let _ = (resident(text), read_amounts(text), listening(text, 8000).count());
            let _ = variable(text, "A");
            prop_assert!(mapped_files(text).all(|(_, path)| path.starts_with('/')));
            if let Some(path) = cgroup(&String::from_utf8_lossy(text)) {
                prop_assert!(path.starts_with('/') && !path.split('/').any(|part| part == ".."));
                let _ = (unit(path), system_units(path).count());
                prop_assert!(system_unit(path).is_none_or(|unit| path.contains(unit)));
            }
        }
    }

    #[test]
    fn a_name_never_changes_what_the_kernel_says(name in prop::collection::vec(any::<u8>(), 0..16)) {
        let (head, tail) = STAT.split_once("vllm").unwrap();
        let text = [head.as_bytes(), &name, tail.as_bytes()].concat();
        let read = stat(&text).unwrap();
        prop_assert_eq!((read.parent, read.cpu_ticks, read.start_ticks), (1, 150, 2_637_123));
    }
}

#[test]
fn the_user_of_a_rootless_container_is_in_its_id_map() {
    // As rootless Podman 4.3.1 of user 1001 made them: by default, and with --userns keep-id.
    let usual = "         0       1001          1\n         1     100000      65536\n";
    let keeps = "         0     100000       1001\n      1001       1001          1\n      1002     101001      64535\n";
    for (map, user) in [
        (usual, Some(1001)),
        (keeps, Some(1001)),
        ("0 1001 1\n1 100000 1\n", Some(1001)),
        // The machine's own, a namespace of Docker's userns-remap, and PrivateUsers=yes of systemd.
        ("         0          0 4294967295\n", None),
        ("         0     100000      65536\n", None),
        ("0 0 1\n1001 1001 1\n", None),
        ("", None),
        ("0 1001\n", None),
        ("0 1001 1\nx\n", None),
        ("0 -1 1\n", None),
    ] {
        assert_eq!(namespace_user(map.as_bytes()), user, "{map}");
    }
    assert_eq!(namespace_user(b"\xff"), None);
}

#[test]
fn a_service_of_a_users_systemd_is_read_with_its_user() {
    let manager = "/user.slice/user-1000.slice/user@1000.service";
    for (below, unit) in [
        ("/app.slice/vllm.service", Some("vllm.service")),
        ("/app.slice/app-vllm.slice/vllm@1.service/sub/other.service", Some("vllm@1.service")),
        ("/vllm.service", Some("vllm.service")),
        ("/app.slice/run-1.scope", None),
        ("/user.slice/libpod-1.scope/container", None),
        ("/init.scope", None),
        ("/.service", None),
        ("", None),
    ] {
        let path = format!("{manager}{below}");
        assert_eq!(user_unit(&path), unit.map(|unit| (1000, unit)), "{path}");
        let group = unit.and_then(|unit| Some(path.split_once(unit)?.0.to_owned() + unit));
        assert_eq!(group_of_user_unit(&path), group.as_deref(), "{path}");
        assert_eq!(system_unit(&path), None, "{path}");
    }
    for other in [
        "/system.slice/vllm.service",
        "/user.slice/user-1000.slice/session-1.scope/vllm.service",
        "/user.slice/user-1000.slice/user@1001.service/vllm.service",
        "/user.slice/user-x.slice/user@x.service/vllm.service",
        "/x/user.slice/user-1000.slice/user@1000.service/vllm.service",
    ] {
        assert_eq!((user_unit(other), group_of_user_unit(other)), (None, None), "{other}");
    }
}

#[test]
fn a_descriptor_is_of_a_file_by_its_mount_and_inode() {
    let read = |flags: &str, rest: &str| descriptor(format!("pos:\t0\n{flags}{rest}").as_bytes());
    let known = read("flags:\t010000000\n", "mnt_id:\t27\nino:\t101\n").unwrap();
    assert_eq!(known, Descriptor { flags: 0o10_000_000, mount: Some(27), inode: Some(101) });
    let old = read("flags:\t0100001\n", "").unwrap();
    assert_eq!((old.flags, old.mount, old.inode), (0o100_001, None, None));
    assert!(known.is_of_file_of(&known) && old.is_of_file_of(&known));
    for rest in ["mnt_id:\t27\nino:\t102\n", "mnt_id:\t28\nino:\t101\n", ""] {
        let other = read("flags:\t0100000\n", rest).unwrap();
        assert!(!known.is_of_file_of(&other), "{rest}");
    }
    for other in ["", "flags:\t9\n", "flags:\t\n", "flags:\t77777777777777\n"] {
        assert_eq!(read(other, ""), None, "{other}");
    }
}
