//! TLS to servers on other nodes: trusted authorities, client certificates, and advice for
//! failures.

use std::error::Error;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ConfigBuilder, RootCertStore, WantsVerifier,
};

use super::http::bare;
use super::keys::{read_file, read_secret};
use crate::model::TlsFiles;

/// The size limit of a certificate file, in bytes: the authorities of a system have 250 KiB.
const MOST_BYTES: u64 = 4 << 20;

const NO_CERTIFICATE: &str = "it holds no certificate (PEM)";

/// The advice if the certificate of a server does not have the requested name.
pub(super) const OTHER_NAME: &str = "use a name that is in its certificate: in its address, \
     or for a server of cluster as tls: {server_name: …}";

/// The advice if a server requires a client certificate.
const OWN_CERTIFICATE: &str = "it requires a client certificate, or another one: configure one \
     for a server of cluster (tls: {cert_file: …, key_file: …}); any other server must ask for \
     none, or be reached through a proxy that has one";

/// Reads the trusted authorities and the client certificate. An error names the file and its
/// mistake. Disks may hang: only for threads without waiters.
pub(super) fn config(files: &TlsFiles) -> Result<ClientConfig, String> {
    let wrong = |key: &str, file: &Path, why: &str| format!("{key} {}: {why}", file.display());
    let roots = match &files.ca {
        None => of_system()?,
        Some(file) => of_file(file).map_err(|why| wrong("ca_file", file, &why))?,
    };
    let config = builder()?.with_root_certificates(roots);
    let Some((certificate, key)) = &files.own else {
        return Ok(config.with_no_client_auth());
    };
    let of_certificate = |why: &str| wrong("cert_file", certificate, why);
    let of_key = |why: &str| wrong("key_file", key, why);
    let text =
        read_file(certificate, MOST_BYTES).map_err(|error| of_certificate(&error.to_string()))?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let chain = chain.map_err(|error| of_certificate(&format!("it is damaged: {error}")))?;
    if chain.is_empty() {
        // TLS would report that the peer has sent none.
        return Err(of_certificate(NO_CERTIFICATE));
    }
    let text = read_secret(key, MOST_BYTES).map_err(|error| of_key(&error.to_string()))?;
    let private = PrivateKeyDer::from_pem_slice(&text)
        .map_err(|error| of_key(&format!("no private key: {error}")))?;
    let config = config.with_client_auth_cert(chain, private);
    config.map_err(|error| of_certificate(&error.to_string()))
}

/// The name that a certificate must have. An error: no certificate can have it, and the remedy.
pub(super) fn name(name: &str) -> Result<ServerName<'static>, String> {
    let known = ServerName::try_from(bare(name).to_owned());
    known.map_err(|_| format!("{name} is no name that a certificate can bear; {OTHER_NAME}"))
}

/// For clients without TLS, which require a configuration.
pub(super) fn without_authorities() -> Result<ClientConfig, String> {
    Ok(builder()?.with_root_certificates(RootCertStore::empty()).with_no_client_auth())
}

fn builder() -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, String> {
    let versions = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions();
    versions.map_err(|error| error.to_string())
}

fn of_system() -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    // An unparsable certificate cannot be trusted.
    let (taken, _) = roots.add_parsable_certificates(found.certs);
    match (taken, found.errors.first()) {
        (0, Some(error)) => Err(format!(
            "the system's certificates cannot be read: {error}; mend that, or name a file as \
             ca_file"
        )),
        (0, None) => Err("the system knows no certificate authority: install ca-certificates, or \
                          name a file as ca_file"
            .to_owned()),
        _ => Ok(roots),
    }
}

fn of_file(file: &Path) -> Result<RootCertStore, String> {
    let text = read_file(file, MOST_BYTES).map_err(|error| error.to_string())?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&text) {
        let certificate = certificate.map_err(|error| format!("it is damaged: {error}"))?;
        roots.add(certificate).map_err(|error| format!("no certificate: {error}"))?;
    }
    if roots.is_empty() { Err(NO_CERTIFICATE.to_owned()) } else { Ok(roots) }
}

/// The advice for an error, if it is one of TLS.
pub(super) fn remedy(error: &(dyn Error + 'static)) -> Option<&'static str> {
    use AlertDescription as Alert;
    use CertificateError as Wrong;
    let remedy = match failure(error)? {
        rustls::Error::InvalidCertificate(wrong) => match wrong {
            Wrong::UnknownIssuer | Wrong::BadSignature => {
                "the issuer of its certificate is not trusted here: name that authority's \
                 certificate as ca_file"
            }
            Wrong::Expired | Wrong::ExpiredContext { .. } => {
                "renew its certificate there, unless this node's clock is wrong"
            }
            Wrong::NotValidYet | Wrong::NotValidYetContext { .. } => {
                "the clock of this node or of that one is wrong"
            }
            Wrong::NotValidForName | Wrong::NotValidForNameContext { .. } => OTHER_NAME,
            _ => return None,
        },
        rustls::Error::AlertReceived(
            Alert::CertificateRequired
            | Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::AccessDenied
            | Alert::HandshakeFailure,
        ) => OWN_CERTIFICATE,
        rustls::Error::InvalidMessage(_) => {
            "it does not seem to speak TLS: configure it without TLS, or turn TLS on there"
        }
        _ => return None,
    };
    Some(remedy)
}

/// The TLS error inside an error, if it is one.
pub(super) fn failure<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e rustls::Error> {
    std::iter::successors(Some(error), |&error| error.source()).find_map(within)
}

/// The same for one error, which may be wrapped several times.
fn within<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e rustls::Error> {
    match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(inner) => within(inner),
        None => error.downcast_ref(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    fn fixture(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/peers").join(name)
    }

    #[test]
    fn tls_errors_name_the_configuration_keys_of_their_remedy() {
        let name = rustls::Error::InvalidCertificate(CertificateError::NotValidForName);
        let alert = rustls::Error::AlertReceived(AlertDescription::CertificateRequired);
        // As it comes from a connection.
        let wrapped = io::Error::other(name);
        assert_eq!(remedy(&wrapped), Some(OTHER_NAME));
        assert_eq!(remedy(&io::Error::other(wrapped)), Some(OTHER_NAME));
        assert!(OTHER_NAME.contains("in its address") && OTHER_NAME.contains("{server_name: …}"));
        let advice = remedy(&alert).unwrap();
        assert!(advice.contains("{cert_file: …, key_file: …}") && advice.contains("ask for none"));
        let issuer = rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer);
        assert!(remedy(&issuer).unwrap().ends_with("as ca_file"));
        assert_eq!(remedy(&io::Error::other("gone")), None);
    }

    #[test]
    fn a_name_impossible_in_a_certificate_is_an_error_with_the_remedy() {
        let why = name("a..b").unwrap_err();
        assert!(why.starts_with("a..b is no name") && why.ends_with(OTHER_NAME), "{why}");
        assert!(name("[::1]").is_ok());
    }

    #[test]
    fn the_error_for_a_bad_file_names_its_configuration_key() {
        let folder = tempfile::tempdir().unwrap();
        let [empty, gone] = ["empty.pem", "gone.pem"].map(|name| folder.path().join(name));
        fs::write(&empty, "no certificate").unwrap();
        let refused = |ca: PathBuf, own: Option<(PathBuf, PathBuf)>| {
            config(&TlsFiles { ca: Some(ca), own, server_name: None }).unwrap_err()
        };
        let authority = || fixture("authority.pem");
        let none = |key: &str| format!("{key} {}: it holds no certificate (PEM)", empty.display());
        assert_eq!(refused(empty.clone(), None), none("ca_file"));
        let own = (empty.clone(), fixture("client.key"));
        assert_eq!(refused(authority(), Some(own)), none("cert_file"));
        let missing = |key: &str| format!("{key} {}: No such file", gone.display());
        let why = refused(gone.clone(), None);
        assert!(why.starts_with(&missing("ca_file")), "{why}");
        let why = refused(authority(), Some((gone.clone(), fixture("client.key"))));
        assert!(why.starts_with(&missing("cert_file")), "{why}");
        let why = refused(authority(), Some((fixture("client.pem"), gone.clone())));
        assert!(why.starts_with(&missing("key_file")), "{why}");
    }
}
