//! TLS to servers that may be on other nodes: who is trusted, who this program is, and what to do
//! where it fails.

use std::error::Error;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{AlertDescription, CertificateError, ClientConfig, RootCertStore};

use super::keys::{read_file, read_secret};
use crate::model::TlsFiles;

/// No file of certificates is longer: a system's authorities have 250 KiB.
const MOST_BYTES: u64 = 4 << 20;

/// Reads who is trusted there, and who this program is; an error says what is wrong with that.
/// Disks may hang: not for a thread that others wait for.
pub(super) fn config(files: &TlsFiles) -> Result<Arc<ClientConfig>, String> {
    let told = |file: &Path, why: &str| format!("{}: {why}", file.display());
    let roots = match &files.ca {
        None => of_system()?,
        Some(file) => of_file(file).map_err(|why| told(file, &why))?,
    };
    let versions = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions();
    let config = versions.map_err(|error| error.to_string())?.with_root_certificates(roots);
    let Some((certificate, key)) = &files.own else {
        return Ok(Arc::new(config.with_no_client_auth()));
    };
    let text = read_file(certificate, MOST_BYTES)
        .map_err(|error| told(certificate, &error.to_string()))?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let chain = chain.map_err(|error| told(certificate, &format!("it is damaged: {error}")))?;
    let text = read_secret(key, MOST_BYTES).map_err(|error| told(key, &error.to_string()))?;
    let private = PrivateKeyDer::from_pem_slice(&text)
        .map_err(|error| told(key, &format!("no private key: {error}")))?;
    let config = config.with_client_auth_cert(chain, private);
    config.map(Arc::new).map_err(|error| told(certificate, &error.to_string()))
}

fn of_system() -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    // One that nobody understands is one that nobody is trusted by.
    let (taken, _) = roots.add_parsable_certificates(found.certs);
    match (taken, found.errors.first()) {
        (0, Some(error)) => Err(format!("the system's certificates cannot be read: {error}")),
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
    if roots.is_empty() { Err("it holds no certificate (PEM)".to_owned()) } else { Ok(roots) }
}

/// What to do about it, where it is TLS that has failed.
pub(super) fn remedy(error: &(dyn Error + 'static)) -> Option<&'static str> {
    use AlertDescription as Told;
    use CertificateError as Wrong;
    let remedy = match failure(error)? {
        rustls::Error::InvalidCertificate(wrong) => match wrong {
            Wrong::UnknownIssuer | Wrong::BadSignature => {
                "whoever has signed its certificate is not trusted here: name that authority's \
                 certificate as ca_file"
            }
            Wrong::Expired | Wrong::ExpiredContext { .. } => {
                "renew its certificate there, unless this node's clock is wrong"
            }
            Wrong::NotValidYet | Wrong::NotValidYetContext { .. } => {
                "the clock of this node or of that one is wrong"
            }
            Wrong::NotValidForName | Wrong::NotValidForNameContext { .. } => {
                "ask for it by a name that its certificate bears (tls: {server_name: …})"
            }
            _ => return None,
        },
        rustls::Error::AlertReceived(
            Told::CertificateRequired
            | Told::BadCertificate
            | Told::UnsupportedCertificate
            | Told::CertificateRevoked
            | Told::CertificateExpired
            | Told::CertificateUnknown
            | Told::UnknownCA
            | Told::AccessDenied
            | Told::HandshakeFailure,
        ) => {
            "it wants a certificate of this program, or another one than it has (tls: {cert_file: \
             …, key_file: …})"
        }
        rustls::Error::InvalidMessage(_) => {
            "it does not seem to speak TLS: ask it without, or have it speak TLS"
        }
        _ => return None,
    };
    Some(remedy)
}

/// What TLS says, if it is that.
fn failure<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e rustls::Error> {
    let mut causes = std::iter::successors(Some(error), |&error| error.source());
    causes.find_map(|error| match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(inner) => inner.downcast_ref(),
        None => error.downcast_ref(),
    })
}
