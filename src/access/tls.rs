//! TLS of the web configuration, and the names in a client's certificate.

use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, ServerConfig,
    SignatureScheme, version,
};
use x509_cert::der::asn1::{PrintableStringRef, TeletexStringRef, Utf8StringRef};
use x509_cert::der::oid::ObjectIdentifier;
use x509_cert::der::{Decode as _, Tagged as _};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::{Certificate, TbsCertificate};

use super::web_config::{ClientAuth, TlsSettings, TlsVersion};

/// `commonName` of X.520.
const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");

/// The most names of a certificate: each is compared.
const MOST_NAMES: usize = 256;

/// The content of the files that the settings name.
pub(super) struct TlsMaterial<'m> {
    pub(super) certificate: &'m [u8],
    pub(super) key: &'m [u8],
    pub(super) client_authorities: Option<&'m [u8]>,
}

/// The part with the mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TlsPart {
    Certificate,
    Key,
    ClientAuthorities,
}

/// The TLS configuration of the server.
pub(super) struct Tls {
    pub(super) config: Arc<ServerConfig>,
    /// The end of the validity of the server's certificate.
    pub(super) expires: Timestamp,
    /// Whether clients' certificates are verified.
    pub(super) verifies_clients: bool,
}

/// Builds the configuration.
///
/// # Errors
/// The part that cannot be used, and why.
pub(super) fn build(
    settings: &TlsSettings,
    from: &TlsMaterial<'_>,
) -> Result<Tls, (TlsPart, String)> {
    let chain = certificates(from.certificate).map_err(|why| (TlsPart::Certificate, why))?;
    let leaf = chain.first().map(AsRef::as_ref).unwrap_or_default();
    let expires = expiry(leaf).map_err(|why| (TlsPart::Certificate, why))?;
    let key = PrivateKeyDer::from_pem_slice(from.key)
        .map_err(|error| (TlsPart::Key, format!("no usable private key (PEM): {error}")))?;
    let provider = Arc::new(provider(settings));
    let (least, most) = settings.versions;
    let versions = [(TlsVersion::Tls13, &version::TLS13), (TlsVersion::Tls12, &version::TLS12)];
    let versions = versions.into_iter().filter(|(one, _)| (least..=most).contains(one));
    let versions: Vec<_> = versions.map(|(_, version)| version).collect();
    let failed = |error: Error| (TlsPart::Certificate, error.to_string());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&versions)
        .map_err(failed)?;
    let builder = match settings.client_auth {
        ClientAuth::None => builder.with_no_client_auth(),
        _ => builder.with_client_cert_verifier(Arc::new(verifier(settings, from, provider)?)),
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|error| match error {
        Error::InconsistentKeys(_) => (TlsPart::Key, "not the key of the certificate".to_owned()),
        error => (TlsPart::Key, format!("cannot be used with the certificate: {error}")),
    })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.ignore_client_order = settings.server_prefers;
    // A resumed session would bring a certificate that has expired since.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    let verifies_clients =
        matches!(settings.client_auth, ClientAuth::VerifyIfGiven | ClientAuth::RequireAndVerify);
    Ok(Tls { config: Arc::new(config), expires, verifies_clients })
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match read {
        Ok(found) if found.is_empty() => Err("no certificate (PEM)".to_owned()),
        Ok(found) => Ok(found),
        Err(error) => Err(format!("damaged certificate: {error}")),
    }
}

/// The offered suites. As in Go, those of TLS 1.3 are always offered.
fn provider(settings: &TlsSettings) -> CryptoProvider {
    let mut provider = ring::default_provider();
    if !settings.cipher_suites.is_empty() {
        let all = std::mem::take(&mut provider.cipher_suites);
        let of_1_3 = all.iter().copied().filter(|suite| suite.tls13().is_some());
        let chosen = settings.cipher_suites.iter();
        let chosen =
            chosen.filter_map(|name| all.iter().copied().find(|suite| suite.suite() == *name));
        provider.cipher_suites = of_1_3.chain(chosen).collect();
    }
    if !settings.curves.is_empty() {
        let all = std::mem::take(&mut provider.kx_groups);
        let chosen = settings.curves.iter();
        provider.kx_groups = chosen
            .filter_map(|name| all.iter().copied().find(|group| group.name() == *name))
            .collect();
    }
    provider
}

/// Verifies clients' certificates.
#[derive(Debug)]
struct Clients {
    provider: Arc<CryptoProvider>,
    /// `None`: certificates are not verified.
    verifier: Option<Arc<dyn ClientCertVerifier>>,
    is_mandatory: bool,
    allowed_sans: Option<Vec<String>>,
}

fn verifier(
    settings: &TlsSettings,
    from: &TlsMaterial<'_>,
    provider: Arc<CryptoProvider>,
) -> Result<Clients, (TlsPart, String)> {
    let is_mandatory =
        matches!(settings.client_auth, ClientAuth::RequireAny | ClientAuth::RequireAndVerify);
    let verifies =
        matches!(settings.client_auth, ClientAuth::VerifyIfGiven | ClientAuth::RequireAndVerify);
    let verifier = match from.client_authorities.filter(|_| verifies) {
        None => None,
        Some(pem) => {
            let wrong = |why: String| (TlsPart::ClientAuthorities, why);
            let mut roots = RootCertStore::empty();
            for certificate in certificates(pem).map_err(wrong)? {
                roots
                    .add(certificate)
                    .map_err(|error| wrong(format!("not an authority: {error}")))?;
            }
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
            Some(verifier.build().map_err(|error| wrong(error.to_string()))?)
        }
    };
    let allowed_sans = settings.client_allowed_sans.clone();
    Ok(Clients { provider, verifier, is_mandatory, allowed_sans })
}

impl ClientCertVerifier for Clients {
    fn client_auth_mandatory(&self) -> bool {
        self.is_mandatory
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.verifier.as_ref().map_or(&[], |verifier| verifier.root_hint_subjects())
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if let Some(verifier) = &self.verifier {
            verifier.verify_client_cert(end_entity, intermediates, now)?;
        }
        if let Some(allowed) = &self.allowed_sans {
            let names = CertificateNames::of(end_entity);
            if !names.alternative.iter().any(|name| allowed.contains(name)) {
                return Err(CertificateError::ApplicationVerificationFailure.into());
            }
        }
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// The names in a certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateNames {
    /// DNS names, mail addresses, IP addresses and URIs, as written.
    pub(super) alternative: Vec<String>,
    /// The subject's common names.
    pub(super) common: Vec<String>,
    /// The end of its validity. A connection may last longer.
    pub(super) expires: Option<Timestamp>,
}

impl CertificateNames {
    /// Reads the names of a certificate. An unreadable one has none.
    pub fn of(certificate: &[u8]) -> Self {
        let Ok(certificate) = Certificate::from_der(certificate) else { return Self::default() };
        let certificate = certificate.tbs_certificate();
        let alternative = match certificate.get_extension::<SubjectAltName>() {
            Ok(Some((_, names))) => names.0.iter().filter_map(name).take(MOST_NAMES).collect(),
            Ok(None) | Err(_) => Vec::new(),
        };
        let subject = certificate.subject();
        let common = subject.iter().filter(|part| part.oid == COMMON_NAME).filter_map(|part| {
            let value = &part.value;
            let tag = value.tag();
            let text = match tag {
                x509_cert::der::Tag::Utf8String => {
                    Utf8StringRef::try_from(value).ok()?.as_str().to_owned()
                }
                x509_cert::der::Tag::PrintableString => {
                    PrintableStringRef::try_from(value).ok()?.as_str().to_owned()
                }
                x509_cert::der::Tag::TeletexString => {
                    TeletexStringRef::try_from(value).ok()?.as_str().to_owned()
                }
                _ => return None,
            };
            Some(text)
        });
        let expires = Some(end(certificate));
        Self { alternative, common: common.take(MOST_NAMES).collect(), expires }
    }

    /// Whether the certificate has this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.alternative.iter().chain(&self.common).any(|one| one == name)
    }
}

fn name(name: &GeneralName) -> Option<String> {
    match name {
        GeneralName::DnsName(name)
        | GeneralName::Rfc822Name(name)
        | GeneralName::UniformResourceIdentifier(name) => Some(name.as_str().to_owned()),
        GeneralName::IpAddress(bytes) => {
            let bytes = bytes.as_bytes();
            let v4 = <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from);
            let v6 = || <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from);
            v4.or_else(v6).map(|address| address.to_string())
        }
        _ => None,
    }
}

fn expiry(certificate: &[u8]) -> Result<Timestamp, String> {
    let certificate = Certificate::from_der(certificate)
        .map_err(|error| format!("damaged certificate: {error}"))?;
    Ok(end(certificate.tbs_certificate()))
}

fn end(certificate: &TbsCertificate) -> Timestamp {
    let after = certificate.validity().not_after.to_unix_duration();
    let seconds = i64::try_from(after.as_secs()).unwrap_or(i64::MAX);
    // RFC 5280 marks unlimited validity with a date beyond the range of the clock.
    Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX)
}
