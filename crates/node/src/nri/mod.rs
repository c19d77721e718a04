//! The plugin of the container runtime (NRI): it changes containers before they start, and keeps
//! what it gave them.
//!
//! | module | owns |
//! |---|---|
//! | [`frames`] | the multiplexed connection, and ttrpc on it |
//! | [`api`] | the messages that are used |
//! | [`mod@adjust`] | pure: what a container gets, and keeps |
//!
//! Owns the conversation: registration, configuration, what becomes of the containers that exist,
//! and an answer for each one that is created, or whose limits are changed. A container runtime
//! tells the containers that exist once in a connection: if they have been given other cores than
//! the IOKernel lends now, the connection is made anew. containerd writes limits of one that has
//! not started to its configuration only, which is read no more while it is being started: such a
//! container gets them once more when it has.

pub mod adjust;
pub mod api;
pub mod frames;

use std::collections::HashSet;
use std::convert::Infallible;
use std::future::pending;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use prost::Message;
use tokio::net::UnixStream;
use tokio::select;
use tokio::time::{sleep, timeout};

use crate::cores::Look;
use crate::watch::{State, States};
use adjust::{Existing, adjust, keep};
use api::{
    ConfigureResponse, ContainerRequest, CreateResponse, REGISTER, RegisterPlugin, Reply, Request,
    StateChange, Synchronize, Synchronized, UPDATE, Update, UpdateResponse,
};
use frames::{Frame, Kind, PLUGIN, RUNTIME, Reader};

/// Time between two attempts to connect.
const BETWEEN_ATTEMPTS: Duration = Duration::from_secs(2);

/// Longest wait for the IOKernel's first answer: a connection before it would be made anew after
/// it.
const FIRST_LOOK: Duration = Duration::from_secs(2);

/// The stream of the registration, the first one.
const REGISTRATION: u32 = 1;

/// Serves the container runtime at a socket, for ever.
pub async fn run(socket: Option<PathBuf>, mut states: States) -> Infallible {
    let Some(socket) = socket else { return pending().await };
    let mut reported = None;
    loop {
        let _ = timeout(FIRST_LOOK, states.wait_for(Option::is_some)).await;
        // Anew at once: a container that starts meanwhile gets no name.
        let Err(error) = serve(&socket, &states).await else { continue };
        let error = format!("{error:#}");
        if reported.as_ref() != Some(&error) {
            eprintln!("tailwater-node: containers are left as they are: {error}");
            reported = Some(error);
        }
        sleep(BETWEEN_ATTEMPTS).await;
    }
}

/// Serves one connection, until it has to be made anew.
async fn serve(socket: &Path, states: &States) -> anyhow::Result<()> {
    let connected = UnixStream::connect(socket).await;
    let mut stream = connected.with_context(|| {
        format!("no NRI at {} (containerd 2, CRI-O; --nri names it, --no-nri does without)", socket.display())
    })?;
    let own = RegisterPlugin { name: "tailwater".to_owned(), index: "50".to_owned() };
    // Streams of a client have odd numbers (ttrpc).
    let mut own_stream = REGISTRATION;
    frames::write(&mut stream, &call(own_stream, REGISTER, &own)).await?;
    let mut reader = Reader::default();
    let mut answers = Answers::new(states);
    loop {
        let frame = select! {
            biased;
            frame = reader.read(&mut stream) => frame.context("the container runtime has ended the connection")?,
            () = is_outdated(states.clone(), answers.given.as_deref()) => return Ok(()),
        };
        match (frame.connection, frame.kind) {
            (RUNTIME, Kind::Response) => {
                let reply = Reply::decode(&*frame.payload)?;
                let refusal = reply.status.filter(|status| status.code != 0).map(|status| status.message);
                match (frame.stream == REGISTRATION, refusal) {
                    (true, Some(why)) => bail!("the container runtime refuses the plugin: {why}"),
                    (true, None) => eprintln!("tailwater-node: registered at the container runtime"),
                    // A container that has ended meanwhile takes no limits.
                    (false, Some(why)) => {
                        eprintln!("tailwater-node: the container runtime refuses limits: {why}");
                    }
                    (false, None) => {}
                }
            }
            (PLUGIN, Kind::Request) => {
                let request = Request::decode(&*frame.payload)?;
                let reply = answers.answer(&request);
                let answered = Frame { kind: Kind::Response, payload: reply.encode_to_vec(), ..frame };
                frames::write(&mut stream, &answered).await?;
                if let Some(late) = answers.late.take() {
                    own_stream += 2;
                    let update = UpdateResponse { updates: vec![late] };
                    frames::write(&mut stream, &call(own_stream, UPDATE, &update)).await?;
                }
            }
            _ => bail!("the container runtime sent an unexpected message"),
        }
    }
}

/// Returns a call of the container runtime.
fn call(stream: u32, method: &str, message: &impl Message) -> Frame {
    let (service, method) = (api::RUNTIME.to_owned(), method.to_owned());
    let request = Request { service, method, payload: message.encode_to_vec() };
    Frame { connection: RUNTIME, stream, kind: Kind::Request, payload: request.encode_to_vec() }
}

/// Waits until the IOKernel lends other cores than the containers that exist have been given.
async fn is_outdated(mut states: States, given: Option<&str>) {
    let Some(given) = given else { return pending().await };
    let is_other = |state: &Option<State>| state.as_ref().is_some_and(|state| state.look.cpuset() != given);
    if states.wait_for(is_other).await.is_err() {
        // The agent ends.
        pending::<()>().await;
    }
}

/// Returns whether control groups are of version 2, and thus have `cpu.idle`.
fn has_idle() -> bool {
    Path::new("/sys/fs/cgroup/cgroup.controllers").exists()
}

/// What the calls of a connection are answered by.
struct Answers<'a> {
    states: &'a States,
    has_idle: bool,
    existing: Existing,
    /// The cores that containers have been given, empty if one has got none while no IOKernel
    /// answered; `None` until the list of those that exist has come.
    given: Option<String>,
    /// Containers, by number, that had not started when their list came.
    unstarted: HashSet<String>,
    /// The limits of one of them that has started since.
    late: Option<Update>,
}

impl<'a> Answers<'a> {
    fn new(states: &'a States) -> Self {
        let (existing, unstarted) = (Existing::default(), HashSet::new());
        Self { states, has_idle: has_idle(), existing, given: None, unstarted, late: None }
    }

    /// Answers one call.
    fn answer(&mut self, request: &Request) -> Reply {
        let look = self.states.borrow().as_ref().map(|state| state.look.clone());
        let look = look.as_ref();
        if look.is_none() {
            self.given.iter_mut().for_each(String::clear);
        }
        let answered = match request.method.as_str() {
            "Configure" => Ok(ConfigureResponse { events: api::EVENTS }.encode_to_vec()),
            "Synchronize" => Synchronize::decode(&*request.payload).map(|part| self.synchronize(part, look)),
            "Shutdown" => Ok(Vec::new()),
            "PostStartContainer" => {
                ContainerRequest::decode(&*request.payload).map(|started| self.started(&started, look))
            }
            "StateChange" => StateChange::decode(&*request.payload).map(|change| {
                let StateChange { event, pod, container } = change;
                let container = container.filter(|_| event == api::STARTED);
                self.started(&ContainerRequest { pod, container }, look)
            }),
            "CreateContainer" => ContainerRequest::decode(&*request.payload)
                .map(|wish| CreateResponse { adjust: adjust(&wish, look, self.has_idle) }.encode_to_vec()),
            "UpdateContainer" => ContainerRequest::decode(&*request.payload).map(|wish| {
                UpdateResponse { updates: Vec::from_iter(keep(&wish, look, self.has_idle)) }.encode_to_vec()
            }),
            other => return failure(api::UNIMPLEMENTED, format!("tailwater-node has no call {other}")),
        };
        match answered {
            Ok(payload) => Reply { status: None, payload },
            Err(error) => failure(api::INVALID_ARGUMENT, error.to_string()),
        }
    }

    /// Enters a part of the list of containers. An answer asks for the next part, or has what
    /// becomes of all.
    fn synchronize(&mut self, part: Synchronize, look: Option<&Look>) -> Vec<u8> {
        let more = part.more;
        self.existing.enter(part);
        if more {
            return Synchronized { updates: Vec::new(), more }.encode_to_vec();
        }
        self.given = Some(look.map(Look::cpuset).unwrap_or_default());
        let existing = std::mem::take(&mut self.existing);
        self.unstarted = existing.unstarted();
        Synchronized { updates: existing.updates(look, self.has_idle), more }.encode_to_vec()
    }

    /// Enters that a container has started. The answer has no fields.
    fn started(&mut self, started: &ContainerRequest, look: Option<&Look>) -> Vec<u8> {
        if started.container.as_ref().is_some_and(|container| self.unstarted.remove(&container.id)) {
            self.late = keep(started, look, self.has_idle);
        }
        Vec::new()
    }
}

fn failure(code: i32, message: String) -> Reply {
    Reply { status: Some(api::Status { code, message }), payload: Vec::new() }
}
