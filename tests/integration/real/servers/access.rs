//! A real Prometheus passes access control, and promtool accepts the example.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use super::prometheus::{Prometheus, assert_scraped_by, promtool};
use super::prometheus_3;
use crate::access::fixture;
use crate::daemon::Daemon;
use crate::real::enabled;

const PASSWORD: &str = "correct horse";

#[test]
fn real_promtool_accepts_the_example_of_a_web_configuration() {
    if !enabled() {
        return;
    }
    let check = Command::new(promtool())
        .args(["check", "web-config"])
        .arg(fixture("web-config.yml"))
        .output()
        .unwrap();
    let printed = [check.stdout, check.stderr].concat();
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&printed));
}

/// Starts a daemon with that web configuration, beside the certificates.
fn daemon(folder: &tempfile::TempDir, web_config: &str) -> Daemon {
    let path = |name: &str| folder.path().join(name);
    for name in ["server.pem", "server.key", "authority.pem"] {
        fs::copy(fixture(name), path(name)).unwrap();
    }
    fs::write(path("web.yml"), web_config).unwrap();
    fs::write(path("tokens.yml"), "- {certificate: spark-2.example, role: operate}\n").unwrap();
    fs::set_permissions(path("tokens.yml"), fs::Permissions::from_mode(0o600)).unwrap();
    let web = format!("--web.config.file={}", path("web.yml").display());
    let tokens = format!("--web.tokens.file={}", path("tokens.yml").display());
    let storage = path("data");
    Daemon::spawn(&storage, &[&web, &tokens])
}

#[test]
fn real_prometheus_scrapes_over_tls_with_a_password() {
    if !enabled() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let daemon = daemon(&folder, &fs::read_to_string(fixture("web-config.yml")).unwrap());
    let scrape = |password: &str| {
        format!(
            "  scheme: https\n  tls_config: {{ca_file: {}}}\n  basic_auth: {{username: \
             prometheus, password: {password}}}\n",
            fixture("authority.pem").display()
        )
    };
    let good = Prometheus::start(&prometheus_3(), daemon.address(), &scrape(PASSWORD));
    assert_scraped_by(&good);
    let wrong = Prometheus::begin(&prometheus_3(), daemon.address(), &scrape("wrong"));
    wrong.wait_for("up{job=\"umawarden\"} == 0");
    // The Prometheus with the right password still scrapes the daemon.
    assert_scraped_by(&good);
    good.wait_for("increase(uma_web_refused_requests_total{reason=\"wrong_credential\"}[1m]) > 0");
}

#[test]
fn real_prometheus_scrapes_over_tls_with_a_certificate() {
    if !enabled() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let daemon = daemon(
        &folder,
        "tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n  client_auth_type: \
         RequireAndVerifyClientCert\n  client_ca_file: authority.pem\n  client_allowed_sans: \
         [spark-2.example]\n",
    );
    let scrape = |certificate: &str| {
        format!(
            "  scheme: https\n  tls_config: {{ca_file: {}, cert_file: {}, key_file: {}}}\n",
            fixture("authority.pem").display(),
            fixture(&format!("{certificate}.pem")).display(),
            fixture(&format!("{certificate}.key")).display()
        )
    };
    let good = Prometheus::start(&prometheus_3(), daemon.address(), &scrape("client"));
    assert_scraped_by(&good);
    for name in ["stranger", "forged"] {
        let refused = Prometheus::begin(&prometheus_3(), daemon.address(), &scrape(name));
        refused.wait_for("up{job=\"umawarden\"} == 0");
    }
    good.wait_for("uma_web_failed_handshakes_total > 0");
}
