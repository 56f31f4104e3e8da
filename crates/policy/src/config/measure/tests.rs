use proptest::prelude::*;

use super::*;

const MS: fn(u64) -> Duration = Duration::from_millis;

#[test]
fn durations_are_read_as_prometheus_reads_them() {
    for (text, ms) in [
        ("0", 0),
        ("0s", 0),
        ("100ms", 100),
        ("5m", 300_000),
        ("1h30m", 5_400_000),
        ("30d", 2_592_000_000),
        ("1y", 31_536_000_000),
        ("1w2d3h4m5s6ms", 788_645_006),
        ("90m", 5_400_000),
    ] {
        assert_eq!(duration(text), Ok(MS(ms)), "{text}");
    }
}

#[test]
fn durations_refused_by_prometheus_are_refused() {
    for text in [
        "",
        "1",
        "5",
        "ms",
        "-5m",
        "1.5h",
        "5 m",
        " 5m",
        "5m ",
        "30m1h",
        "1m1m",
        "5M",
        "1µs",
        "1h-",
        "99999999999999999999s",
        "18446744073709551615y",
        "300000000000y",
    ] {
        assert!(duration(text).is_err(), "{text}");
    }
}

#[test]
fn bounds_are_inclusive() {
    assert_eq!(duration_within("10ms", MS(10), MS(1000)), Ok(MS(10)));
    assert_eq!(duration_within("1s", MS(10), MS(1000)), Ok(MS(1000)));
    let error = duration_within("9ms", MS(10), MS(1000)).expect_err("too short");
    assert_eq!(error, "9ms is out of bounds: from 10ms to 1s");
}

#[test]
fn sizes_are_read() {
    assert_eq!(size_bytes("256MiB"), Ok(256 << 20));
    assert_eq!(size_bytes("1GiB"), Ok(1 << 30));
    assert_eq!(size_bytes("1.5 GiB"), Ok(3 << 29));
    assert_eq!(size_bytes("500MB"), Ok(500_000_000));
    assert_eq!(size_bytes("4096"), Ok(4096));
    for text in ["", "lots", "-1MiB", "1XiB", "99999999999EiB", "MiB", "0x10"] {
        assert!(size_bytes(text).is_err(), "{text}");
    }
}

#[test]
fn listen_addresses_are_read_as_they_are_written() {
    for text in [":9942", "127.0.0.1:0", "[::1]:9942", "[::]:80", "localhost:9942", "gb10-a.lan:1"]
    {
        let address: ListenAddress = text.parse().expect(text);
        assert_eq!(address.to_string(), text);
    }
}

#[test]
fn invalid_listen_addresses_are_refused() {
    for text in [
        "",
        "9942",
        ":",
        ":x",
        ":65536",
        ":+1",
        "::1:9942",
        "[::1]",
        "300.1.1.1:80",
        "a b:80",
        "host:",
        "http://localhost:9942",
        "[localhost]:80",
        "a..b:80",
        "*:9942",
    ] {
        assert!(text.parse::<ListenAddress>().is_err(), "{text}");
    }
}

#[test]
fn all_addresses_means_ipv6_first_and_ipv4_else() {
    let address: ListenAddress = ":9942".parse().expect("an address");
    let bound: Vec<String> = address.candidates().iter().map(ToString::to_string).collect();
    assert_eq!(bound, ["[::]:9942", "0.0.0.0:9942"]);
}

#[test]
fn the_metrics_path_keeps_off_the_other_routes() {
    assert_eq!(telemetry_path("/metrics"), Ok("/metrics".to_owned()));
    assert_eq!(telemetry_path("/apiary"), Ok("/apiary".to_owned()));
    for text in ["", "metrics", "/", "/-/ready", "/api/v1/status", "/a b", "/{x}", "/a?b", "/ä"] {
        assert!(telemetry_path(text).is_err(), "{text}");
    }
}

proptest! {
    #[test]
    fn durations_survive_being_written(ms in 0u64..=i64::MAX as u64) {
        prop_assert_eq!(duration(&written(MS(ms))), Ok(MS(ms)));
    }

    #[test]
    fn arbitrary_text_does_not_panic_the_readers(text in "(?s).{0,40}") {
        let _ = duration(&text);
        let _ = size_bytes(&text);
        let _ = text.parse::<ListenAddress>();
        let _ = telemetry_path(&text);
    }

    #[test]
    fn almost_durations_never_panic(text in "[0-9]{0,22}(ms|s|m|h|d|w|y)?[0-9]{0,22}(ms|s|y)?") {
        if let Ok(found) = duration(&text) {
            prop_assert_eq!(duration(&written(found)), Ok(found));
        }
    }

    #[test]
    fn addresses_survive_being_written(text in "[a-z0-9.:\\[\\]-]{0,20}:[0-9]{1,5}") {
        if let Ok(address) = text.parse::<ListenAddress>() {
            prop_assert_eq!(address.to_string().parse(), Ok(address));
        }
    }
}
