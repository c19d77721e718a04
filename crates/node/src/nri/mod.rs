//! The plugin of the container runtime (NRI): it changes containers before they start, and keeps
//! what it gave them.
//!
//! | module | owns |
//! |---|---|
//! | [`frames`] | the multiplexed connection, and ttrpc on it |
//! | [`api`] | the messages that are used |
//! | [`mod@adjust`] | pure: what a container gets, and keeps |
//!
//! Owns the conversation: registration, configuration, and an answer for each container that is
//! created, or whose limits are changed. Containers that exist already are left as they are.

pub mod adjust;
pub mod api;
pub mod frames;

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use prost::Message;
use tokio::net::UnixStream;
use tokio::time::sleep;

use crate::watch::States;
use adjust::{adjust, keep};
use api::{
    ConfigureResponse, ContainerRequest, CreateResponse, REGISTER, RegisterPlugin, Reply, Request,
    Synchronize, Synchronized, UpdateResponse,
};
use frames::{Frame, Kind, PLUGIN, RUNTIME, Reader};

/// Time between two attempts to connect.
const BETWEEN_ATTEMPTS: Duration = Duration::from_secs(2);

/// Serves the container runtime at a socket, for ever.
pub async fn run(socket: Option<PathBuf>, states: States) -> Infallible {
    let Some(socket) = socket else { return std::future::pending().await };
    let mut reported = None;
    loop {
        let Err(error) = serve(&socket, &states).await;
        let error = format!("{error:#}");
        if reported.as_ref() != Some(&error) {
            eprintln!("tailwater-node: containers are left as they are: {error}");
            reported = Some(error);
        }
        sleep(BETWEEN_ATTEMPTS).await;
    }
}

/// Serves one connection, to its end.
async fn serve(socket: &Path, states: &States) -> anyhow::Result<Infallible> {
    let connected = UnixStream::connect(socket).await;
    let mut stream = connected.with_context(|| {
        format!("no NRI at {} (containerd 2, CRI-O; --nri names it, --no-nri does without)", socket.display())
    })?;
    let own = RegisterPlugin { name: "tailwater".to_owned(), index: "50".to_owned() };
    let request = Request {
        service: api::RUNTIME.to_owned(),
        method: REGISTER.to_owned(),
        payload: own.encode_to_vec(),
    };
    // Streams of a client have odd numbers (ttrpc).
    let first =
        Frame { connection: RUNTIME, stream: 1, kind: Kind::Request, payload: request.encode_to_vec() };
    frames::write(&mut stream, &first).await?;
    let mut reader = Reader::default();
    loop {
        let frame =
            reader.read(&mut stream).await.context("the container runtime has ended the connection")?;
        match (frame.connection, frame.kind) {
            (RUNTIME, Kind::Response) => {
                let reply = Reply::decode(&*frame.payload)?;
                if let Some(status) = reply.status.filter(|status| status.code != 0) {
                    bail!("the container runtime refuses the plugin: {}", status.message);
                }
                eprintln!("tailwater-node: registered at the container runtime");
            }
            (PLUGIN, Kind::Request) => {
                let request = Request::decode(&*frame.payload)?;
                let reply = answer(&request, states);
                let answered = Frame { kind: Kind::Response, payload: reply.encode_to_vec(), ..frame };
                frames::write(&mut stream, &answered).await?;
            }
            _ => bail!("the container runtime sent an unexpected message"),
        }
    }
}

/// Answers one call.
fn answer(request: &Request, states: &States) -> Reply {
    let answered = match request.method.as_str() {
        "Configure" => Ok(ConfigureResponse { events: api::EVENTS }.encode_to_vec()),
        // A long list comes in parts: the answer asks for the next part. No container is changed.
        "Synchronize" => Synchronize::decode(&*request.payload)
            .map(|Synchronize { more }| Synchronized { more }.encode_to_vec()),
        // Answered by a message without fields.
        "Shutdown" | "StateChange" => Ok(Vec::new()),
        call @ ("CreateContainer" | "UpdateContainer") => {
            ContainerRequest::decode(&*request.payload).map(|wish| {
                let look = states.borrow().as_ref().map(|state| state.look.clone());
                if call == "CreateContainer" {
                    CreateResponse { adjust: adjust(&wish, look.as_ref()) }.encode_to_vec()
                } else {
                    UpdateResponse { updates: Vec::from_iter(keep(&wish, look.as_ref())) }.encode_to_vec()
                }
            })
        }
        other => return failure(api::UNIMPLEMENTED, format!("tailwater-node has no call {other}")),
    };
    match answered {
        Ok(payload) => Reply { status: None, payload },
        Err(error) => failure(api::INVALID_ARGUMENT, error.to_string()),
    }
}

fn failure(code: i32, message: String) -> Reply {
    Reply { status: Some(api::Status { code, message }), payload: Vec::new() }
}
