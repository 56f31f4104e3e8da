//! Calls over TLS. Only lock servers and Alertmanagers are spoken to so: engines are on this node,
//! and their client carries no TLS, nor what that needs of memory. Nothing is made or read before a
//! call.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use hyper::{Method, Request, Uri};
use hyper_util::rt::TokioIo;
use rustix::fs::{Mode, OFlags, open};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::Answer;
use super::keys::Secret;
use super::session::Header;
use crate::model::TlsFiles;

/// No file of authorities is longer: a system's has 250 KiB.
const MOST_CA_BYTES: u64 = 4 << 20;

/// More headers than these are no lock server's.
const MOST_HEADERS: usize = 64;

/// Who says that a server is who it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trust {
    /// Whom the system trusts.
    System,
    /// Whoever signs with a certificate of this file (PEM), and nobody else.
    File(PathBuf),
}

impl Trust {
    /// Reads who is trusted; an error says what is wrong with that.
    pub(super) fn config(&self) -> Result<Arc<ClientConfig>, String> {
        let roots = match self {
            Self::System => of_system()?,
            Self::File(file) => {
                of_file(file).map_err(|why| format!("ca_file {}: {why}", file.display()))?
            }
        };
        let versions = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions();
        let config = versions.map_err(|error| error.to_string())?;
        Ok(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
    }
}

/// Who is trusted there, and who this program is; an error says what is wrong with that.
pub(super) fn config_of(files: &TlsFiles) -> Result<Arc<ClientConfig>, String> {
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
    let text = read(certificate).map_err(|error| told(certificate, &error.to_string()))?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let chain = chain.map_err(|error| told(certificate, &format!("it is damaged: {error}")))?;
    let text = read(key).map_err(|error| told(key, &error.to_string()))?;
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
    let text = read(file).map_err(|error| error.to_string())?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&text) {
        let certificate = certificate.map_err(|error| format!("it is damaged: {error}"))?;
        roots.add(certificate).map_err(|error| format!("no certificate: {error}"))?;
    }
    if roots.is_empty() { Err("it holds no certificate (PEM)".to_owned()) } else { Ok(roots) }
}

fn read(file: &Path) -> io::Result<Vec<u8>> {
    // A pipe in its place must not hold anybody up.
    let file =
        File::from(open(file, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    let mut text = Vec::new();
    file.take(MOST_CA_BYTES + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MOST_CA_BYTES {
        return Err(io::Error::other("it is longer than 4 MiB"));
    }
    Ok(text)
}

/// What a call says beside its body.
#[derive(Clone, Copy)]
pub(super) struct Headers<'c> {
    /// Its own header.
    pub(super) own: Option<Header>,
    /// Who calls.
    pub(super) key: Option<&'c Secret>,
}

/// One call. All of it is bounded by whoever waits for it, and connecting by `connecting_takes`.
pub(super) async fn exchange(
    config: Arc<ClientConfig>,
    connecting_takes: Duration,
    method: Method,
    url: &str,
    headers: Headers<'_>,
    body: Vec<u8>,
) -> Result<Answer, String> {
    let uri: Uri = url.parse().map_err(|_| format!("{url} is no address"))?;
    let host = uri.host().ok_or_else(|| format!("{url} names no host"))?;
    let bare = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let name = ServerName::try_from(bare.clone()).map_err(|_| format!("{bare} is no name"))?;
    let connecting = async {
        let stream = TcpStream::connect((bare.as_str(), uri.port_u16().unwrap_or(443))).await?;
        TlsConnector::from(config).connect(name, stream).await
    };
    let stream = timeout(connecting_takes, connecting)
        .await
        .map_err(|_| format!("no connection within {} s", connecting_takes.as_secs()))?
        .map_err(|error| format!("connecting failed: {error}"))?;
    let failed = |error: hyper::Error| format!("the connection failed: {error}");
    let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
        .max_headers(MOST_HEADERS)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(failed)?;
    // It ends with the call, or with the runtime of whoever does not wait any more.
    tokio::spawn(connection);
    let authority = uri.authority().map_or(host, |authority| authority.as_str());
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header(HOST, authority)
        .header(USER_AGENT, concat!("umawarden/", env!("CARGO_PKG_VERSION")))
        .header(CONTENT_TYPE, "application/json");
    if let Some((name, value)) = headers.own {
        request = request.header(name, value);
    }
    if let Some(key) = headers.key {
        request = request.header(AUTHORIZATION, key.header());
    }
    let request = request.body(Full::new(Bytes::from(body))).map_err(|error| error.to_string())?;
    let mut response = sender.send_request(request).await.map_err(failed)?;
    let mut answer = Answer::of(response.status().as_u16());
    while let Some(frame) = response.frame().await {
        let frame = frame.map_err(failed)?;
        let Some(chunk) = frame.data_ref() else { continue };
        if !answer.take(chunk) {
            break;
        }
    }
    Ok(answer)
}
