mod floods;

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::HeaderMap;
use hyper::header::HeaderValue;
use jiff::Timestamp;
use proptest::prelude::*;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::decide::{Authorization, read_authorization};
use super::passwords::Passwords;
use super::rate::Limiter;
use super::web_config::{RateLimit, User};
use super::*;
use crate::config::mistake::SourceText;

/// "correct horse", cheaply.
const HASH: &str = "$2y$04$abcdefghijklmnopqrstuujydOTSfIH/d5oUHpsygqV5X9xJLQc6e";

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/web").join(name)
}

/// The first line of each mistake, and its hint.
fn messages(error: &AccessError) -> Vec<String> {
    let (AccessError::WebConfig(mistakes) | AccessError::Tokens(mistakes)) = error else {
        return vec![error.to_string()];
    };
    let one = |mistake: &crate::config::mistake::Mistake| {
        let hint = mistake.hint.as_ref().map(|hint| format!(" = {hint}")).unwrap_or_default();
        format!("{}:{}: {}{hint}", mistake.line, mistake.column, mistake.message)
    };
    mistakes.0.iter().map(one).collect()
}

/// What is wrong with a web configuration in the folder of the certificates.
fn wrong_web(text: &str) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    for name in ["server.pem", "server.key", "authority.pem", "client.key"] {
        fs::copy(fixture(name), folder.path().join(name)).unwrap();
    }
    let file = folder.path().join("web.yml");
    fs::write(&file, text).unwrap();
    let files = AccessFiles { web_config: Some(file), tokens: None };
    match check(&files, Timestamp::UNIX_EPOCH) {
        Ok(_) => Vec::new(),
        Err(error) => {
            let folder = folder.path().display().to_string();
            messages(&error).into_iter().map(|line| line.replace(&folder, "…")).collect()
        }
    }
}

const TLS: &str = "tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n";

/// With what is wrong with each.
const BROKEN_WEB: &[(&str, &str)] = &[
    (
        "tls_server: {}\n",
        "1:1: unknown key \"tls_server\" in the web configuration = known keys: tls_server_config, http_server_config, rate_limit, basic_auth_users",
    ),
    (
        "basic_auth_user: {a: b}\n",
        "1:1: unknown key \"basic_auth_user\" in the web configuration = did you mean \"basic_auth_users\"?",
    ),
    (
        "tls_server_config:\n  cert_file: server.pem\n",
        "2:3: tls_server_config has neither key_file nor key = write key_file: server.key; it is relative to this file's folder",
    ),
    (
        "tls_server_config:\n  min_version: TLS13\n  key_file: server.key\n",
        "2:3: tls_server_config has neither cert_file nor cert = write cert_file: server.pem; it is relative to this file's folder",
    ),
    (
        "tls_server_config:\n  cert_file: gone.pem\n  key_file: server.key\n",
        "2:14: cert_file: …/gone.pem: there is no such file",
    ),
    (
        "tls_server_config:\n  cert_file: server.key\n  key_file: server.key\n",
        "2:14: cert_file: …/server.key: no certificate (PEM)",
    ),
    (
        "tls_server_config:\n  cert_file: server.pem\n  key_file: client.key\n",
        "3:13: key_file: …/client.key: not the key of the certificate",
    ),
    (
        "tls_server_config:\n  cert_file: server.pem\n  cert: x\n  key_file: server.key\n",
        "3:9: both cert_file and cert are given = remove one of the two",
    ),
    (
        "{TLS}  client_auth_type: RequireVerify\n",
        "4:21: client_auth_type cannot be \"RequireVerify\" = write one of: NoClientCert, RequestClientCert, RequireAnyClientCert, RequireClientCert, VerifyClientCertIfGiven, RequireAndVerifyClientCert",
    ),
    (
        "{TLS}  client_auth_type: RequireAndVerifyClientCert\n",
        "4:3: no authority for client certificates is given = name the authority that signs them: client_ca_file: clients.pem",
    ),
    (
        "{TLS}  client_ca_file: authority.pem\n",
        "4:3: client_ca_file is given, but no client certificate is requested = write client_auth_type: RequireAndVerifyClientCert",
    ),
    (
        "{TLS}  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: server.key\n",
        "5:19: client_ca_file: …/server.key: no certificate (PEM)",
    ),
    (
        "{TLS}  client_allowed_sans: [a]\n",
        "4:3: client certificates are optional = write client_auth_type: RequireAndVerifyClientCert",
    ),
    (
        "{TLS}  min_version: TLS10\n",
        "4:16: min_version: TLS10 is not supported: weak or rare = write one of: TLS13, TLS12",
    ),
    (
        "{TLS}  min_version: TLS13\n  max_version: TLS12\n",
        "5:3: max_version is before min_version: no version is left",
    ),
    (
        "{TLS}  cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA]\n",
        "4:19: an entry of cipher_suites: TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA is not supported: weak or rare",
    ),
    (
        "{TLS}  cipher_suites: [TLS_AES_128_GCM_SHA256]\n",
        "4:3: no suite of TLS 1.2 is left, but min_version allows TLS 1.2",
    ),
    (
        "{TLS}  curve_preferences: [CurveP521]\n",
        "4:23: an entry of curve_preferences: CurveP521 is not supported: weak or rare = write one of: X25519, CurveP256, CurveP384",
    ),
    ("http_server_config: {http2: maybe}\n", "1:29: http2: \"maybe\" is neither true nor false"),
    ("http_server_config:\n  headers:\n    Server: x\n", "3:5: unknown key \"Server\" in headers"),
    (
        "http_server_config:\n  headers:\n    X-Frame-Options: never\n",
        "3:22: X-Frame-Options cannot be \"never\" = write one of: deny, sameorigin",
    ),
    ("rate_limit: {interval: often, burst: 3}\n", "1:24: interval: "),
    (
        "rate_limit: {interval: 1s}\n",
        "1:14: rate_limit has no burst: no request would be served = write burst: 20, the number of requests that may come at once",
    ),
    (
        "rate_limit: {interval: 1s, burst: 0}\n",
        "1:35: burst: \"0\" is not a number from 1 to 4294967295",
    ),
    (
        "basic_auth_users:\n  alice: hunter2\n",
        "2:10: the password must be hashed with bcrypt: $2y$10$… = make the hash with: htpasswd -nBC 10 \"\" | tr -d ':\\n'",
    ),
    (
        "basic_auth_users:\n  'a:b': x\n",
        "2:3: a user's name has 1 to 128 characters, and no colon among them",
    ),
    (
        "basic_auth_users:\n  alice: {DEAR}\n",
        "2:10: the hash has cost 20: each guess takes seconds of CPU",
    ),
    ("a: [\n", "not valid YAML"),
];

#[test]
fn broken_web_configurations_are_refused_with_the_line() {
    for (text, expected) in BROKEN_WEB {
        let dear = HASH.replace("$04$", "$20$");
        let text = text.replace("{TLS}", TLS).replace("{DEAR}", &dear);
        let text = &text;
        let found = wrong_web(text);
        assert!(found.len() == 1 && found[0].contains(expected), "{text}\n{found:#?}");
    }
}

#[test]
fn good_web_configurations_are_read() {
    let everything = format!(
        "{TLS}  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: authority.pem\n  \
         client_allowed_sans: [a]\n  min_version: TLS12\n  max_version: TLS13\n  cipher_suites: \
         [TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256]\n  prefer_server_cipher_suites: false\n  \
         curve_preferences: [X25519, CurveP256]\nhttp_server_config:\n  http2: false\n  headers: \
         {{X-Frame-Options: deny, X-XSS-Protection: '1', Strict-Transport-Security: ''}}\n\
         rate_limit: {{interval: 0, burst: 3}}\nbasic_auth_users:\n  alice: {HASH}\n"
    );
    for text in ["", "# nothing\n", "tls_server_config: {}\n", "rate_limit: {}\n", TLS, &everything]
    {
        assert_eq!(wrong_web(text), Vec::<String>::new(), "{text}");
    }
    let pem = |name| fs::read_to_string(fixture(name)).unwrap().replace('\n', "\n    ");
    let (cert, key) = (pem("server.pem"), pem("server.key"));
    let inline = format!("tls_server_config:\n  cert: |\n    {cert}\n  key: |\n    {key}\n");
    assert_eq!(wrong_web(&inline), Vec::<String>::new(), "{inline}");
}

/// Files of tokens, with the mode that they should have.
fn tokens_file(text: &str, mode: u32) -> (tempfile::TempDir, AccessFiles) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens.yml");
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
    (folder, AccessFiles { web_config: None, tokens: Some(file) })
}

#[test]
fn broken_tokens_files_are_refused_with_the_line() {
    let hash = "ab".repeat(32);
    let twice = format!(
        "- {{name: a, role: read, sha256: {hash}}}\n- {{name: b, role: read, sha256: {hash}}}\n"
    );
    for (text, expected) in [
        ("tokens: []\n", "1:1: the tokens file must be a list, but this is a mapping"),
        (
            "- {name: a, sha256: b}\n",
            "1:4: the entry has no role = write role: read, operate or remedy",
        ),
        (
            "- {name: a, role: admin, sha256: b}\n",
            "1:19: role cannot be \"admin\" = write one of: read, operate, remedy",
        ),
        (
            "- {name: a, role: opperate, certificate: b}\n",
            "1:19: role cannot be \"opperate\" = did you mean \"operate\"?",
        ),
        ("- {role: read, sha256: b}\n", "1:4: the entry has no subject"),
        ("- {name: a, role: read}\n", "1:4: a token needs its hash"),
        (
            "- {name: a, role: read, token: hunter2}\n",
            "1:25: unknown key \"token\" in an entry = only its hash belongs here",
        ),
        (
            "- {name: a, role: read, sha256: hunter2}\n",
            "1:33: sha256 is not the 64 hexadecimal digits of a hash",
        ),
        (
            "- {name: 'a b', role: read, sha256: x}\n",
            "1:10: name: it must have 1 to 64 letters, digits and any of -._@, and nothing else",
        ),
        ("- {user: a, certificate: b, role: read}\n", "1:10: the entry has certificate and user"),
        ("- {user: a, role: read, sha256: b}\n", "1:25: a user has no token"),
        (
            "- {user: a, role: read}\n",
            "1:10: there is no user a = name one of basic_auth_users in the file of --web.config.file",
        ),
        (
            "- {name: a, role: read, token_file: gone}\n",
            "1:37: token_file: …/gone: there is no such file",
        ),
        (
            &format!("- {{name: a, role: read, sha256: {hash}, expires: soon}}\n"),
            "expires: \"soon\" is not an RFC 3339 time",
        ),
        (&twice, "2:10: the token of b belongs to another entry, too"),
        (
            "- {certificate: a, role: read}\n- {certificate: a, role: remedy}\n",
            "2:17: certificate a is there twice",
        ),
    ] {
        let (folder, files) = tokens_file(text, 0o600);
        let error = check(&files, Timestamp::UNIX_EPOCH).unwrap_err();
        let folder = folder.path().display().to_string();
        let found: Vec<_> =
            messages(&error).iter().map(|line| line.replace(&folder, "…")).collect();
        assert!(found.iter().any(|line| line.contains(expected)), "{text}\n{found:#?}");
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
}

#[test]
fn files_of_secrets_that_others_can_reach_are_refused_with_the_remedy() {
    for (mode, part) in [(0o604, "chmod o-rwx"), (0o620, "chmod go-w"), (0o602, "chmod go-w")] {
        let (_folder, files) = tokens_file("[]\n", mode);
        let error = check(&files, Timestamp::UNIX_EPOCH).unwrap_err().to_string();
        assert!(error.contains(part) && error.contains("tokens.yml"), "{error}");
    }
    let (_folder, files) = tokens_file("[]\n", 0o640);
    assert_eq!(check(&files, Timestamp::UNIX_EPOCH).unwrap().entries, 0);
    let (_folder, mut files) = tokens_file("", 0o606);
    files.web_config = files.tokens.take();
    let error = check(&files, Timestamp::UNIX_EPOCH).unwrap_err().to_string();
    assert!(error.contains("chmod o-w"), "{error}");
}

#[test]
fn mistakes_are_shown_without_secrets() {
    for text in [
        "basic_auth_users:\n  alice: hunter2\n",
        "basic_auth_users: {alice: hunter2, alice: hunter2}\n",
        "basic_auth_users: [hunter2]\n",
        "basic_auth_user: {alice: hunter2}\n",
        "basic_auth_users: {alice: {a: hunter2}}\n",
        "basic_auth_users: {burst: hunter2, cert_file: hunter2}\n",
        "basic_auth_users: {alice: hunter2\n",
        "basic_auth_users: {alice: 'hunter2'\n",
        "basic_auth_users:\n  alice: hunter2: x\n",
        "tls_server_config: {key: hunter2, cret: x}\n",
        "tls_server_config: {cert_file: a, key_file: b, key: hunter2}\n",
        "tls_server_config:\n  key: |\n    hunter2\n  cert: |\n   hunter2\n hunter2\n",
        "hunter2\n",
        "- hunter2\n",
        "&hunter2 a: b\nb: hunter2\n",
    ] {
        let source = SourceText::new("f", text);
        for mistakes in [
            web_config::parse(&source).err().map(|mistakes| mistakes.to_string()),
            tokens::parse(&source).err().map(|mistakes| mistakes.to_string()),
        ] {
            let shown = mistakes.unwrap_or_default();
            let is_key = text.starts_with('&') || text.contains("hunter2: x");
            assert!(is_key || !shown.contains("hunter2"), "{text}\n{shown}");
        }
    }
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused_at_a_position_in_it(text in "(?s)[ -~\n\u{e9}]{0,200}") {
        let source = SourceText::new("f", &*text);
        let lines = text.lines().count().max(1) + 1;
        for found in [
            web_config::parse(&source).map(drop),
            tokens::parse(&source).map(drop),
        ] {
            for mistake in found.err().map(|mistakes| mistakes.0).unwrap_or_default() {
                prop_assert!((1..=lines).contains(&mistake.line) && mistake.column >= 1);
            }
        }
    }

    #[test]
    fn any_credentials_are_read_or_refused(bytes in proptest::collection::vec(32u8..=255, 0..80)) {
        if let Ok(header) = HeaderValue::from_bytes(&bytes) {
            let _read = read_authorization(&header);
        }
        let _names = CertificateNames::of(&bytes);
    }
}

#[test]
fn authorization_headers_are_parsed() {
    let read = |text: &'static str| match read_authorization(&HeaderValue::from_static(text)) {
        Some(Authorization::Bearer(token)) => format!("token {}", String::from_utf8_lossy(token)),
        Some(Authorization::Basic { name, password }) => {
            format!("{name} / {}", String::from_utf8_lossy(&password))
        }
        None => "nothing".to_owned(),
    };
    for (header, expected) in [
        ("Bearer abc", "token abc"),
        ("bEARER   abc ", "token abc"),
        ("Bearer ", "nothing"),
        ("Bearer", "nothing"),
        ("Basic YWxpY2U6Y29ycmVjdDpob3JzZQ==", "alice / correct:horse"),
        ("basic YWxpY2U6", "alice / "),
        ("Basic YWxpY2U", "nothing"),
        ("Basic YWxpY2U=", "nothing"),
        ("Basic ****", "nothing"),
        ("Digest abc", "nothing"),
        ("", "nothing"),
    ] {
        assert_eq!(read(header), expected, "{header}");
    }
}

fn certificate(name: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(fixture(name)).unwrap()
}

#[test]
fn a_certificate_has_all_its_names() {
    let names = CertificateNames::of(&certificate("client.pem"));
    for name in
        ["spark-2.example", "192.0.2.7", "spiffe://example/scraper", "ops@example", "scraper"]
    {
        assert!(names.has(name), "{name}: {names:?}");
    }
    for name in ["", "example", "SPARK-2.example", "192.0.2.70", "*"] {
        assert!(!names.has(name), "{name}");
    }
    assert_eq!(CertificateNames::of(b"no certificate"), CertificateNames::default());
}

#[test]
fn a_limit_lets_a_burst_through_and_then_one_in_each_interval() {
    let limiter = Limiter::default();
    let at = Duration::from_millis;
    assert_eq!(limiter.take(at(0)), Ok(()), "no limit");
    limiter.set(Some(RateLimit { interval: at(100), burst: 3 }));
    let taken =
        |now: u64, times: usize| (0..times).filter(|_| limiter.take(at(now)).is_ok()).count();
    assert_eq!(taken(1000, 10), 3);
    assert_eq!(limiter.take(at(1000)), Err(at(100)));
    assert_eq!(limiter.take(at(1060)), Err(at(40)));
    assert_eq!(taken(1100, 10), 1);
    assert_eq!(taken(1350, 10), 2);
    assert_eq!(taken(60_000, 10), 3, "no more than the burst is saved");
    limiter.set(Some(RateLimit { interval: at(100), burst: 3 }));
    assert_eq!(taken(60_000, 1), 0, "the same limit is no new one");
    limiter.set(None);
    assert_eq!(taken(60_000, 100), 100);
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn alice() -> User {
    User { name: "alice".into(), hash: HASH.to_owned(), cost: 4 }
}

fn now() -> Timestamp {
    "2026-06-01T00:00:00Z".parse().unwrap()
}

fn named(name: &str, role: Role, expires: Option<&str>) -> Principal {
    let expires = expires.map(|text| text.parse().unwrap());
    Principal { name: name.into(), role, expires }
}

fn decided(rules: &Rules, needs: Requirement, headers: &[(&'static str, &str)]) -> String {
    decided_with(rules, needs, headers, None)
}

fn decided_with(
    rules: &Rules,
    needs: Requirement,
    headers: &[(&'static str, &str)],
    names: Option<&CertificateNames>,
) -> String {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(*name, HeaderValue::from_str(value).unwrap());
    }
    let passwords = Passwords::new().unwrap();
    let decided = decide::decide(rules, &passwords, now(), needs, HERE, &map, names);
    match runtime().block_on(decided) {
        Ok(None) => "anybody".to_owned(),
        Ok(Some(credential)) => credential.to_string(),
        Err(refused) => {
            let challenges = refused.challenges.len();
            format!("{} {challenges}", refused.reason.name())
        }
    }
}

#[test]
fn certificates_and_users_have_the_roles_of_their_entries() {
    use sha2::Digest as _;
    let names = CertificateNames::of(&certificate("client.pem"));
    let rules = Rules {
        users: vec![alice()],
        user_roles: vec![named("alice", Role::Operate, None)],
        tokens: vec![(
            sha2::Sha256::digest("old").into(),
            named("old", Role::Remedy, Some("2026-05-31T23:59:59Z")),
        )],
        certificates: vec![
            named("scraper", Role::Read, None),
            named("ops@example", Role::Operate, None),
            named("192.0.2.7", Role::Remedy, Some("2026-01-01T00:00:00Z")),
        ],
        ..Rules::default()
    };
    let [read, operate, remedy] = Role::ALL.map(Requirement::Role);
    let with = |access, headers: &[_]| decided_with(&rules, access, headers, Some(&names));
    assert_eq!(with(operate, &[]), "certificate ops@example", "the most that has not expired");
    assert_eq!(with(remedy, &[]), "role 0");
    let basic = ("authorization", "Basic YWxpY2U6Y29ycmVjdCBob3JzZQ==");
    assert_eq!(with(operate, &[basic]), "user alice", "what is said counts before what is shown");
    assert_eq!(decided(&rules, read, &[basic]), "user alice");
    assert_eq!(decided(&rules, remedy, &[basic]), "role 0");
    assert_eq!(decided(&rules, read, &[]), "no_credential 2", "users exclude anonymous readers");
    assert_eq!(decided(&rules, read, &[basic, basic]), "wrong_credential 2");
    let old = ("authorization", "Bearer old");
    assert_eq!(decided(&rules, operate, &[old]), "expired 2");
    assert_eq!(decided(&rules, Requirement::Local, &[basic]), "local_only 0");
    let elsewhere = [basic, ("origin", "https://evil.example"), ("host", "node:9942")];
    assert_eq!(decided(&rules, operate, &elsewhere), "cross_site 0");
    assert_eq!(decided(&rules, read, &elsewhere), "user alice", "reading changes nothing");
    let here = [basic, ("origin", "https://node:9942"), ("host", "node:9942")];
    assert_eq!(decided(&rules, operate, &here), "user alice");
    assert_eq!(decided(&rules, operate, &[basic, ("origin", "null")]), "cross_site 0");
    assert_eq!(decided(&rules, operate, &[basic, ("sec-fetch-site", "same-site")]), "cross_site 0");
    let open = Rules::default();
    assert_eq!(decided(&open, read, &[old]), "anybody", "nothing is verified that is not needed");
    assert_eq!(decided(&open, operate, &[]), "no_credential 0");
    assert_eq!(decided(&open, operate, &[old]), "wrong_credential 1");
}

#[test]
fn a_new_token_is_known_by_its_entry() {
    use sha2::Digest as _;
    let expires = Some("2027-01-01T00:00:00Z".parse().unwrap());
    let token = create_token("ops", Role::Remedy, expires).unwrap();
    let (_folder, files) = tokens_file(&token.entry(), 0o600);
    let rules = load::load(&files, now()).1.unwrap();
    let (hash, named) = &rules.tokens[0];
    assert_eq!(*hash, <[u8; 32]>::from(sha2::Sha256::digest(&token.token)));
    assert_eq!((&*named.name, named.role, named.expires), ("ops", Role::Remedy, expires));
    assert!(!token.entry().contains(&token.token));
    assert_ne!(create_token("ops", Role::Read, None).unwrap().token, token.token);
    assert!(create_token("o p s", Role::Read, None).unwrap_err().contains("letters"));
}
