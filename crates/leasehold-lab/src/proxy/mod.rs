//! A faulty network in front of a server, on its own thread.

mod connection;
mod fault;
mod hub;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Weak, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use self::connection::Ends;
pub use self::fault::{Counts, Cut, Flow, Toward, Trick};
use self::hub::Hub;
use crate::error::Result;
use crate::port::Port;

const LOOKS_AGAIN_AFTER: Duration = Duration::from_millis(1);

/// A TCP proxy with faults on request. A drop ends its connections and frees its port.
///
/// Bytes that are not RESP, such as TLS, are passed on too: a [`Flow`] and a [`Cut`] apply to them,
/// but no [`Trick`], and they are not counted as requests.
#[derive(Debug)]
pub struct Proxy {
    port: Port,
    hub: Arc<Hub>,
    orders: Option<UnboundedSender<(Order, mpsc::Sender<io::Result<()>>)>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Clone, Copy)]
enum Order {
    Refuse,
    Accept,
    Cut(Cut),
}

impl Proxy {
    /// Starts a proxy in front of a server, which need not run yet.
    pub fn to(server: SocketAddr) -> Result<Self> {
        let (port, listener) = loop {
            let port = Port::free()?;
            match std::net::TcpListener::bind(port.addr()) {
                Ok(listener) => break (port, listener),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(error.into()),
            }
        };
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = {
            let _inside = runtime.enter();
            TcpListener::from_std(listener)?
        };
        let (sender, orders) = unbounded_channel();
        let hub = Arc::new(Hub::new());
        let office = Office { addr: port.addr(), server, hub: hub.clone(), listener: Some(listener) };
        let thread = thread::Builder::new().name("lab-proxy".to_owned());
        let thread = thread.spawn(move || runtime.block_on(office.run(orders)))?;
        Ok(Proxy { port, hub, orders: Some(sender), thread: Some(thread) })
    }

    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.addr())
    }

    pub fn set(&self, toward: Toward, flow: Flow) {
        self.hub.set(toward, flow);
    }

    /// Passes all bytes, accepts new connections and disarms all tricks. Cut and silent connections
    /// stay so.
    pub fn heal(&self) -> Result<()> {
        self.hub.state().tricks.clear();
        self.set(Toward::Server, Flow::Pass);
        self.set(Toward::Client, Flow::Pass);
        self.accept()
    }

    /// Plays a trick on the next request of any connection. Armed tricks are played in order, one
    /// per request, never on a subscription: its reply looks like a message.
    pub fn arm(&self, trick: Trick) {
        self.hub.state().tricks.push_back((None, trick));
    }

    /// Plays a trick on the next request with this command, such as `EVALSHA`.
    pub fn arm_for(&self, command: &str, trick: Trick) {
        self.hub.state().tricks.push_back((Some(command.to_ascii_uppercase()), trick));
    }

    /// Returns the number of tricks not yet played.
    pub fn armed(&self) -> usize {
        self.hub.state().tricks.len()
    }

    /// Cuts every connection. When this returns, all bytes under way are lost.
    pub fn cut(&self, by: Cut) -> Result<()> {
        self.order(Order::Cut(by))
    }

    /// Refuses new connections, as a machine without a listener. Existing connections stay.
    pub fn refuse(&self) -> Result<()> {
        self.order(Order::Refuse)
    }

    pub fn accept(&self) -> Result<()> {
        self.order(Order::Accept)
    }

    pub fn counts(&self) -> Counts {
        self.hub.state().counts.clone()
    }

    /// Blocks until the counts are as wanted; returns false after `patience`.
    pub fn until(&self, patience: Duration, wanted: impl Fn(&Counts) -> bool) -> bool {
        let since = Instant::now();
        loop {
            if wanted(&self.counts()) {
                return true;
            }
            if since.elapsed() > patience {
                return false;
            }
            thread::sleep(LOOKS_AGAIN_AFTER);
        }
    }

    /// Returns after the order is carried out.
    fn order(&self, order: Order) -> Result<()> {
        let gone = || io::Error::other("the thread of a proxy died");
        let (sender, done) = mpsc::channel();
        let orders = self.orders.as_ref().ok_or_else(gone)?;
        orders.send((order, sender)).map_err(|_| gone())?;
        Ok(done.recv().map_err(|_| gone())??)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // A closed channel of orders ends the thread.
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The state of a proxy's thread.
struct Office {
    addr: SocketAddr,
    server: SocketAddr,
    hub: Arc<Hub>,
    /// `None` while new connections are refused.
    listener: Option<TcpListener>,
}

impl Office {
    async fn run(mut self, mut orders: UnboundedReceiver<(Order, mpsc::Sender<io::Result<()>>)>) {
        let mut connections = JoinSet::new();
        let mut ends: Vec<Weak<Ends>> = Vec::new();
        let (sender, mut made) = unbounded_channel();
        loop {
            tokio::select! {
                biased;
                Some(made) = made.recv() => ends.push(made),
                Some(_) = connections.join_next() => ends.retain(|ends| ends.strong_count() > 0),
                client = accepted(self.listener.as_ref()) => {
                    self.hub.count(|counts| counts.connections += 1);
                    let open = Open::new(self.hub.clone());
                    connections.spawn(connect(client, self.server, open, sender.clone()));
                }
                order = orders.recv() => {
                    let Some((order, done)) = order else {
                        return;
                    };
                    let obeyed = match order {
                        Order::Refuse => {
                            self.listener = None;
                            Ok(())
                        }
                        Order::Accept => self.listen().await,
                        Order::Cut(by) => {
                            while let Ok(made) = made.try_recv() {
                                ends.push(made);
                            }
                            cut_all(&mut connections, &mut ends, by).await;
                            Ok(())
                        }
                    };
                    // It fails if the caller no longer waits.
                    let _ = done.send(obeyed);
                }
            }
        }
    }

    async fn listen(&mut self) -> io::Result<()> {
        if self.listener.is_none() {
            self.listener = Some(TcpListener::bind(self.addr).await?);
        }
        Ok(())
    }
}

/// Returns the next client; pending while new connections are refused.
async fn accepted(listener: Option<&TcpListener>) -> TcpStream {
    let Some(listener) = listener else {
        return std::future::pending().await;
    };
    loop {
        match listener.accept().await {
            Ok((client, _)) => return client,
            // No busy loop if the client has gone already, or no descriptor is free.
            Err(_) => tokio::time::sleep(LOOKS_AGAIN_AFTER).await,
        }
    }
}

async fn connect(client: TcpStream, server: SocketAddr, open: Open, made: UnboundedSender<Weak<Ends>>) {
    let Ok(server) = TcpStream::connect(server).await else {
        // No server listens: the client gets a reset.
        let _ = client.set_zero_linger();
        return;
    };
    // Otherwise the kernel would add its own delays. It fails if the other side has gone.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let ends = Arc::new(Ends { client, server });
    let _ = made.send(Arc::downgrade(&ends));
    connection::serve(ends, &open.0).await;
}

struct Open(Arc<Hub>);

impl Open {
    fn new(hub: Arc<Hub>) -> Self {
        hub.count(|counts| counts.open += 1);
        Open(hub)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.count(|counts| counts.open -= 1);
    }
}

async fn cut_all(connections: &mut JoinSet<()>, ends: &mut Vec<Weak<Ends>>, by: Cut) {
    for ends in ends.drain(..).filter_map(|ends| ends.upgrade()) {
        for end in [&ends.client, &ends.server] {
            match by {
                Cut::Reset => {
                    let _ = end.set_zero_linger();
                }
                // Unread bytes would turn the end into a reset.
                Cut::Finish => while end.try_read(&mut [0; 4096]).is_ok_and(|n| n > 0) {},
            }
        }
    }
    connections.abort_all();
    while connections.join_next().await.is_some() {}
}
