//! A TLS front for a plain server: trusted clients get the responses of that server.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

/// A file beside the server's certificate, which `authority.pem` has signed and `other.pem` has
/// not.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tls").join(name)
}

/// With a certificate for `localhost` and `127.0.0.1`.
pub fn server_config() -> ServerConfig {
    let chain = CertificateDer::pem_file_iter(fixture("server.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(fixture("server.key")).unwrap();
    ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain.map(Result::unwrap).collect(), key)
        .unwrap()
}

/// Forwards TLS connections to that port of the loopback; returns its own port.
pub fn before(plain: u16) -> u16 {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    listener.set_nonblocking(true).unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(pass_on(listener, (Ipv4Addr::LOCALHOST, plain).into()));
    });
    port
}

async fn pass_on(listener: std::net::TcpListener, plain: SocketAddr) {
    let listener = TcpListener::from_std(listener).unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(server_config()));
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let acceptor = acceptor.clone();
        tokio::spawn(async move {
            // A client may reject this server.
            let Ok(mut stream) = acceptor.accept(stream).await else { return };
            let Ok(mut plain) = TcpStream::connect(plain).await else { return };
            // The client may have disconnected.
            let _ = copy_bidirectional(&mut stream, &mut plain).await;
        });
    }
}
