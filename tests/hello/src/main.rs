//! A server and a client of hyper for `tailwater-lab bench events`: the same code on Tailwater's
//! tasks and sockets, and on a Tokio runtime of one thread.
//!
//! Owns the command line and what the process prints: `listening on ADDRESS` by a server, `rps
//! NUMBER` and `p50_us NUMBER` by a client. [`http`] owns both ends of a connection.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

mod http;
mod on_tailwater;
mod on_tokio;

tailwater::allocator!();

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const USAGE: &str = "usage: tailwater-hello tailwater|tokio serve ADDRESS
       tailwater-hello tailwater|tokio ask ADDRESS CONNECTIONS WARM_UP_MS COUNTED_MS

serve answers every HTTP request with `hello`, and prints where it listens. ask has one request
outstanding on each connection, and prints the answers per second and the median latency.
On Tailwater it attaches to the IOKernel at TAILWATER_IOKERNEL.";

/// What a client does.
#[derive(Debug, Clone, Copy)]
struct Load {
    server: SocketAddr,
    connections: u32,
    warm_up: Duration,
    counted: Duration,
}

#[derive(Debug, Clone, Copy)]
enum Role {
    Serve(SocketAddr),
    Ask(Load),
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let Some((host, role)) = words.split_first().and_then(|(host, rest)| Some((*host, role(rest)?))) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let ended = match host {
        "tailwater" => on_tailwater::run(role),
        "tokio" => on_tokio::run(role),
        _ => {
            eprintln!("{host} is neither `tailwater` nor `tokio`\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tailwater-hello: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the role that the words ask for.
fn role(words: &[&str]) -> Option<Role> {
    let ms = |word: &str| Some(Duration::from_millis(word.parse().ok()?));
    Some(match *words {
        ["serve", address] => Role::Serve(address.parse().ok()?),
        ["ask", server, connections, warm_up, counted] => Role::Ask(Load {
            server: server.parse().ok()?,
            connections: connections.parse().ok().filter(|connections| *connections > 0)?,
            warm_up: ms(warm_up)?,
            counted: ms(counted).filter(|counted| !counted.is_zero())?,
        }),
        _ => return None,
    })
}
