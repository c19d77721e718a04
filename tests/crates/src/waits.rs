//! Crates that wait through calls that release the core.

use std::io::{Read, Write};
use std::sync::{Arc, OnceLock};

use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use tailwater::net::{TcpListener, TcpStream};
use tailwater::sync::Mutex;
use tailwater::thread;

const ROWS: u32 = 50;

fn database() -> rusqlite::Connection {
    let database = rusqlite::Connection::open_in_memory().unwrap();
    database.execute("CREATE TABLE visits (visitor INTEGER, page TEXT)", []).unwrap();
    database
}

fn count(database: &rusqlite::Connection) -> u32 {
    database.query_row("SELECT count(*) FROM visits", [], |row| row.get(0)).unwrap()
}

/// A database in memory behind Tailwater's own mutex: its calls are short and never wait.
pub fn rusqlite() {
    let database = Arc::new(Mutex::new(database()));
    let visit = |visitor| {
        let database = database.clone();
        move || {
            let database = database.lock().unwrap();
            database.execute("INSERT INTO visits VALUES (?1, 'index')", [visitor]).unwrap();
        }
    };
    let threads: Vec<_> = (0..ROWS).map(|visitor| thread::spawn(visit(visitor))).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(count(&database.lock().unwrap()), ROWS);
}

/// A database in a file: its calls read and write files, so they run on ordinary threads.
pub fn rusqlite_blocking() {
    let database = Mutex::new(database());
    thread::scope(|scope| {
        for visitor in 0..ROWS {
            let database = &database;
            scope.spawn(move || {
                tailwater::blocking(|| {
                    let database = database.lock().unwrap();
                    database.execute("INSERT INTO visits VALUES (?1, 'index')", [visitor]).unwrap();
                });
            });
        }
    });
    assert_eq!(count(&database.lock().unwrap()), ROWS);
}

/// TLS over `tailwater::net::TcpStream`, which is `Read` and `Write` like std's: a certificate, a
/// handshake, an echo.
pub fn rustls() {
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certified.cert.der().clone()).unwrap();
    let key = PrivateKeyDer::try_from(certified.signing_key.serialize_der()).unwrap();
    let server = ServerConfig::builder().with_no_client_auth();
    let server = Arc::new(server.with_single_cert(vec![certified.cert.der().clone()], key).unwrap());
    let client = Arc::new(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth());

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serving = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut tls = StreamOwned::new(ServerConnection::new(server).unwrap(), stream);
        let mut question = [0; 5];
        tls.read_exact(&mut question).unwrap();
        tls.write_all(&question).unwrap();
        tls.flush().unwrap();
    });
    let connection = ClientConnection::new(client, ServerName::try_from("localhost").unwrap()).unwrap();
    let mut tls = StreamOwned::new(connection, TcpStream::connect(address).unwrap());
    tls.write_all(b"hello").unwrap();
    let mut answer = [0; 5];
    tls.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"hello");
    serving.join().unwrap();
}

/// The log's output.
#[derive(Clone, Default)]
struct Log(Arc<std::sync::Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A subscriber whose writer is an ordinary thread, with names of user threads; spans belong to the
/// thread that entered them.
pub fn tracing() {
    static GUARD: OnceLock<Mutex<Option<tracing_appender::non_blocking::WorkerGuard>>> = OnceLock::new();
    let log = Log::default();
    let (writer, guard) = tracing_appender::non_blocking(log.clone());
    GUARD.get_or_init(|| Mutex::new(Some(guard)));
    let format = tailwater_tracing::with_thread_names(tracing_subscriber::fmt::format());
    tracing_subscriber::fmt().with_ansi(false).with_writer(writer).event_format(format).init();
    let threads = (0..20).map(|number| {
        let worker = move || {
            let _span = tracing::info_span!("request", number).entered();
            thread::yield_now();
            tracing::info!("answered");
        };
        thread::Builder::new().name("worker".to_owned()).spawn(worker).unwrap()
    });
    threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
    // Dropped, the guard waits until all is written; that is a wait for an ordinary thread.
    tailwater::blocking(|| drop(GUARD.get().unwrap().lock().unwrap().take()));
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    for number in 0..20 {
        let line = text.lines().find(|line| line.contains(&format!("request{{number={number}}}")));
        assert!(line.is_some_and(|line| line.starts_with("worker ") && line.ends_with("answered")), "{text}");
    }
}
