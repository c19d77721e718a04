//! A stand-in for the kubelet: it serves registrations, and asks each plugin for its devices, as
//! the device manager of a kubelet does.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::thread::JoinHandle;

use tailwater_node::api::{
    AllocateRequest, AllocateResponse, Devices, Empty, Given, HEALTHY, KUBELET, Options, PLUGIN, REGISTER,
    RegisterRequest, VERSION, Wanted,
};
use tailwater_testkit::eventually;
use tokio::net::UnixListener;
use tokio::sync::oneshot;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::body::Body;
use tonic::client;
use tonic::server::{Grpc, NamedService};
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;
use tower::{Service, service_fn};

/// What is known of a plugin.
#[derive(Default)]
struct Known {
    endpoint: String,
    registrations: usize,
    /// The last list; `None` once the plugin has ended the stream.
    devices: Option<Devices>,
}

/// The plugins, by resource.
type Plugins = Arc<Mutex<HashMap<String, Known>>>;

/// Serves until it is dropped.
pub struct Kubelet {
    folder: PathBuf,
    plugins: Plugins,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Kubelet {
    /// Starts one in the folder of a test. As the real one, it removes all sockets that it finds.
    pub fn start(folder: &Path) -> Self {
        for entry in std::fs::read_dir(folder.join("plugins")).expect("the folder").flatten() {
            // The agent may remove its own at the same time.
            let _ = std::fs::remove_file(entry.path());
        }
        Self::start_beside(folder)
    }

    /// As [`start`](Self::start), but leaves the sockets of plugins.
    pub fn start_beside(folder: &Path) -> Self {
        let folder = folder.join("plugins");
        let _ = std::fs::remove_file(folder.join(KUBELET));
        let plugins = Plugins::default();
        let (end, ended) = oneshot::channel::<()>();
        let serve = {
            let (folder, plugins) = (folder.clone(), Arc::clone(&plugins));
            async move {
                let listener = UnixListener::bind(folder.join(KUBELET)).expect("it listens");
                let calls = Registration { folder, plugins };
                let server = Server::builder().serve_with_incoming(calls, UnixListenerStream::new(listener));
                tokio::select! {
                    served = server => served.expect("it serves"),
                    _ = ended => {}
                }
            }
        };
        let thread = std::thread::spawn(move || runtime().block_on(serve));
        Self { folder, plugins, end: Some(end), thread: Some(thread) }
    }

    /// Returns the number of healthy devices of a resource, and of all; `None` unless its plugin
    /// serves.
    pub fn devices(&self, resource: &str) -> Option<(usize, usize)> {
        let plugins = self.plugins.lock().unwrap_or_else(PoisonError::into_inner);
        let devices = &plugins.get(resource)?.devices.as_ref()?.devices;
        Some((devices.iter().filter(|device| device.health == HEALTHY).count(), devices.len()))
    }

    /// Returns how often a resource was registered.
    pub fn registrations(&self, resource: &str) -> usize {
        let plugins = self.plugins.lock().unwrap_or_else(PoisonError::into_inner);
        plugins.get(resource).map_or(0, |known| known.registrations)
    }

    /// Allocates the first devices of a resource to a container.
    pub fn allocate(&self, resource: &str, count: usize) -> Given {
        let (endpoint, ids) = eventually("the plugin has the devices", || {
            let plugins = self.plugins.lock().unwrap_or_else(PoisonError::into_inner);
            let known = plugins.get(resource)?;
            let ids = known.devices.as_ref()?.devices.iter().map(|device| device.id.clone());
            let ids: Vec<String> = ids.take(count).collect();
            (ids.len() == count).then(|| (known.endpoint.clone(), ids))
        });
        let request = AllocateRequest { containers: vec![Wanted { ids }] };
        let call = async {
            let mut client = connect(&self.folder, &endpoint).await.expect("the plugin serves");
            client.ready().await.expect("the plugin serves");
            let codec = ProstCodec::<_, AllocateResponse>::default();
            client
                .unary(Request::new(request), path("Allocate"), codec)
                .await
                .expect("an answer")
                .into_inner()
        };
        let mut containers = runtime().block_on(call).containers;
        assert_eq!(containers.len(), 1);
        containers.remove(0)
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        let _ = self.end.take().expect("once").send(());
        let _ = self.thread.take().expect("once").join();
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

async fn connect(folder: &Path, endpoint: &str) -> Result<client::Grpc<Channel>, tonic::transport::Error> {
    let address = format!("unix://{}", folder.join(endpoint).display());
    Ok(client::Grpc::new(Endpoint::from_shared(address)?.connect().await?))
}

fn path(call: &str) -> http::uri::PathAndQuery {
    format!("{PLUGIN}{call}").parse().expect("a path")
}

/// The kubelet's side of the registration.
#[derive(Clone)]
struct Registration {
    folder: PathBuf,
    plugins: Plugins,
}

impl Registration {
    fn register(&self, request: RegisterRequest) -> Result<Response<Empty>, Status> {
        if request.version != VERSION || !request.resource_name.contains('/') {
            return Err(Status::invalid_argument("another version, or no name of an extended resource"));
        }
        let RegisterRequest { endpoint, resource_name, .. } = request;
        let mut plugins = self.plugins.lock().unwrap_or_else(PoisonError::into_inner);
        let known = plugins.entry(resource_name.clone()).or_default();
        known.endpoint.clone_from(&endpoint);
        known.registrations += 1;
        drop(plugins);
        tokio::spawn(watch(self.folder.clone(), endpoint, resource_name, Arc::clone(&self.plugins)));
        Ok(Response::new(Empty {}))
    }
}

/// Follows the devices of a plugin to the end of its stream.
async fn watch(folder: PathBuf, endpoint: String, resource: String, plugins: Plugins) {
    let note = |devices| {
        let mut plugins = plugins.lock().unwrap_or_else(PoisonError::into_inner);
        plugins.entry(resource.clone()).or_default().devices = devices;
    };
    if let Ok(mut lists) = list(&folder, &endpoint).await {
        while let Ok(Some(devices)) = lists.message().await {
            note(Some(devices));
        }
    }
    note(None);
}

async fn list(folder: &Path, endpoint: &str) -> anyhow::Result<Streaming<Devices>> {
    let mut client = connect(folder, endpoint).await?;
    client.ready().await?;
    let options = ProstCodec::<Empty, Options>::default();
    let answered = client.unary(Request::new(Empty {}), path("GetDevicePluginOptions"), options).await?;
    // With options the kubelet would make calls that the plugin does not have.
    assert_eq!(answered.into_inner(), Options::default());
    client.ready().await?;
    let lists = ProstCodec::<Empty, Devices>::default();
    Ok(client.server_streaming(Request::new(Empty {}), path("ListAndWatch"), lists).await?.into_inner())
}

impl NamedService for Registration {
    const NAME: &'static str = "v1beta1.Registration";
}

impl Service<http::Request<Body>> for Registration {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            assert_eq!(request.uri().path(), REGISTER);
            let register = service_fn(move |request: Request<RegisterRequest>| {
                std::future::ready(this.register(request.into_inner()))
            });
            Ok(Grpc::new(ProstCodec::default()).unary(register, request).await)
        })
    }
}
