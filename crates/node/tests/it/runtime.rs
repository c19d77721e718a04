//! A stand-in for the container runtime, and what the agent does to containers.

use std::collections::HashMap;
use std::path::Path;

use prost::Message;
use tailwater_node::nri::api::{
    self, ConfigureResponse, Container, ContainerRequest, CreateResponse, Number, Pod, RegisterPlugin, Reply,
    Request, StateChange, Status, Synchronize, Synchronized, Update, UpdateResponse,
};
use tailwater_node::nri::frames::{Frame, Kind, PLUGIN, RUNTIME, Reader, write};
use tailwater_testkit::PATIENCE;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

use crate::iokernel::IoKernel;
use crate::{agent, folder};

/// Accepts the agent and its registration.
async fn accept(listener: &UnixListener) -> UnixStream {
    let connected = timeout(PATIENCE, listener.accept()).await.expect("the agent connects in time");
    let (mut stream, _) = connected.expect("it is accepted");
    let plugin: RegisterPlugin = called(&mut stream, "RegisterPlugin").await;
    assert!(plugin.index.len() == 2 && plugin.index.bytes().all(|digit| digit.is_ascii_digit()));
    stream
}

/// Answers a call of the agent; returns its message.
async fn called<M: Message + Default>(stream: &mut UnixStream, method: &str) -> M {
    answered(stream, method, &Reply::default()).await
}

/// The same with this answer.
async fn answered<M: Message + Default>(stream: &mut UnixStream, method: &str, answer: &Reply) -> M {
    let read = timeout(PATIENCE, async { Reader::default().read(stream).await }).await;
    let frame = read.expect("the agent calls in time").expect("a call");
    assert_eq!((frame.connection, frame.kind), (RUNTIME, Kind::Request));
    let request = Request::decode(&*frame.payload).expect("a call");
    assert_eq!((&*request.service, &*request.method), (api::RUNTIME, method));
    let reply = Frame { kind: Kind::Response, payload: answer.encode_to_vec(), ..frame };
    write(stream, &reply).await.expect("the agent reads");
    M::decode(&*request.payload).expect("its message")
}

/// Calls the agent.
async fn call(stream: &mut UnixStream, method: &str, message: &impl Message) -> Reply {
    let service = "nri.pkg.api.v1alpha1.Plugin".to_owned();
    let request = Request { service, method: method.to_owned(), payload: message.encode_to_vec() };
    let frame =
        Frame { connection: PLUGIN, stream: 5, kind: Kind::Request, payload: request.encode_to_vec() };
    write(stream, &frame).await.expect("the agent reads");
    let answer = Reader::default().read(stream).await.expect("an answer");
    assert_eq!((answer.connection, answer.stream, answer.kind), (PLUGIN, 5, Kind::Response));
    Reply::decode(&*answer.payload).expect("an answer")
}

fn batch() -> ContainerRequest {
    let annotations = HashMap::from([("tailwater.io/class".to_owned(), "best-effort".to_owned())]);
    let (id, name, namespace) = ("p".to_owned(), "xz-1".to_owned(), "night".to_owned());
    let (pod, state) = (id.clone(), api::CREATED);
    let container = Container { id: "7".to_owned(), pod, state, ..Container::default() };
    ContainerRequest { pod: Some(Pod { id, name, namespace, annotations }), container: Some(container) }
}

/// Returns the cores that updates give.
fn cores(updates: Vec<Update>) -> Vec<String> {
    updates.into_iter().filter_map(|update| Some(update.linux?.resources?.cpu?.cpus)).collect()
}

/// Accepts connections of the agent until it gives the cores `expected` to a container that exists.
async fn synchronized(listener: &UnixListener, expected: &str) -> UnixStream {
    loop {
        let mut stream = accept(listener).await;
        let configured = call(&mut stream, "Configure", &()).await;
        let configured = ConfigureResponse::decode(&*configured.payload).expect("its events");
        assert_eq!(configured.events, api::EVENTS);
        // The list comes in two parts.
        let ContainerRequest { pod, container } = batch();
        let part = Synchronize { pods: Vec::from_iter(pod), containers: Vec::new(), more: true };
        let asks = call(&mut stream, "Synchronize", &part).await;
        let expects = Synchronized { updates: Vec::new(), more: true };
        assert_eq!(Synchronized::decode(&*asks.payload), Ok(expects));
        let part = Synchronize { containers: Vec::from_iter(container), ..Synchronize::default() };
        let answered = call(&mut stream, "Synchronize", &part).await;
        let Synchronized { updates, more } =
            Synchronized::decode(&*answered.payload).expect("limits of containers that exist");
        assert!(!more);
        if cores(updates) == [expected] {
            return stream;
        }
        // It makes the connection anew when it knows other cores.
        let ended = timeout(PATIENCE, Reader::default().read(&mut stream)).await.expect("the agent in time");
        assert!(ended.is_err(), "{ended:?}");
    }
}

/// Does `work` as the container runtime of an agent whose files are in `folder`.
fn beside_agent(folder: &Path, work: impl AsyncFnOnce(UnixListener)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let listener = UnixListener::bind(folder.join("nri.sock")).expect("it listens");
        let _agent = agent(folder);
        work(listener).await;
    });
}

#[test]
fn containers_that_exist_get_the_lent_cores_of_an_iokernel_that_comes_late_or_changes_them() {
    let folder = folder();
    beside_agent(folder.path(), async |listener| {
        let without = synchronized(&listener, "").await;
        let iokernel = IoKernel::start(folder.path(), &[1, 3], &[]);
        let with = synchronized(&listener, "1,3").await;
        iokernel.set(&[1, 5], &[]);
        drop((without, with, synchronized(&listener, "1,5").await));
    });
}

#[test]
fn annotated_pods_become_batch_pods_also_when_the_container_runtime_starts_again() {
    let folder = folder();
    let _iokernel = IoKernel::start(folder.path(), &[1, 3], &[]);
    beside_agent(folder.path(), async |listener| {
        for _ in 0..2 {
            let mut stream = synchronized(&listener, "1,3").await;
            let created = call(&mut stream, "CreateContainer", &batch()).await;
            let created = CreateResponse::decode(&*created.payload).expect("an adjustment");
            let linux = created.adjust.expect("it is adjusted").linux.expect("by Linux");
            let resources = linux.resources.expect("its limits");
            assert_eq!(resources.cpu.expect("its cores").cpus, "1,3");
            // With control groups of version 2 only.
            let has_idle = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
            let idle = resources.unified.get("cpu.idle");
            assert_eq!(idle.map(String::as_str), has_idle.then_some("1"));
            let other = ContainerRequest { pod: Some(Pod::default()), container: Some(Container::default()) };
            let left = call(&mut stream, "CreateContainer", &other).await;
            assert_eq!(CreateResponse::decode(&*left.payload), Ok(CreateResponse::default()));
            // A kubelet gives it other cores.
            let updated = call(&mut stream, "UpdateContainer", &batch()).await;
            let UpdateResponse { updates } = UpdateResponse::decode(&*updated.payload).expect("limits");
            assert_eq!(cores(updates), ["1,3"]);
            let unknown = call(&mut stream, "RunPodSandbox", &()).await;
            assert_eq!(unknown.status.expect("it fails").code, api::UNIMPLEMENTED);
            // Field 1 of the message is a number here.
            let garbled = call(&mut stream, "CreateContainer", &Number { value: 1 }).await;
            assert_eq!(garbled.status.expect("it fails").code, api::INVALID_ARGUMENT);
        }
    });
}

#[test]
fn a_container_that_is_being_started_at_the_registration_gets_the_lent_cores_once_it_has_started() {
    let folder = folder();
    let _iokernel = IoKernel::start(folder.path(), &[1, 3], &[]);
    beside_agent(folder.path(), async |listener| {
        let ContainerRequest { pod, container } = batch();
        let event = StateChange { event: api::STARTED, pod, container };
        // A container runtime has a call for the event, or did not yet have one.
        for has_call in [true, false] {
            let mut stream = synchronized(&listener, "1,3").await;
            for is_first in [true, false] {
                let reply = match has_call {
                    true => call(&mut stream, "PostStartContainer", &batch()).await,
                    false => call(&mut stream, "StateChange", &event).await,
                };
                assert_eq!(reply, Reply::default());
                if is_first {
                    // One that has ended meanwhile takes no limits: the connection goes on.
                    let status = Status { code: 5, message: "it has stopped".to_owned() };
                    let refusal = Reply { status: Some(status), ..Reply::default() };
                    let UpdateResponse { updates } =
                        answered(&mut stream, "UpdateContainers", &refusal).await;
                    assert_eq!(cores(updates), ["1,3"]);
                }
            }
            // The next message is an answer: it was given the cores once.
            call(&mut stream, "Shutdown", &()).await;
        }
    });
}
