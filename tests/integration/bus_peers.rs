//! A fake service of the system bus on a socket of its own.

use std::future::Future;
use std::os::unix::net::UnixListener;
use std::path::Path;

use zbus::Connection;
use zbus::connection::Builder;

pub fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1).enable_all().build().unwrap()
}

/// Serves every connection until the test process ends.
pub fn serve_each<S, R>(socket: &Path, serve: S)
where
    S: Fn(Connection) -> R + Clone + Send + 'static,
    R: Future<Output = ()> + Send,
{
    let listener = UnixListener::bind(socket).unwrap();
    std::thread::spawn(move || {
        let runtime = runtime();
        for stream in listener.incoming().flatten() {
            let serve = serve.clone();
            runtime.spawn(async move {
                let guid = zbus::Guid::generate();
                let builder = Builder::unix_stream(stream).server(guid).p2p();
                // A client that only probed the socket has closed the connection.
                if let Ok(connection) = builder.build().await {
                    serve(connection).await;
                }
            });
        }
    });
}
