//! A store in a child process: calls and answers cross over a socket.
//!
//! A module defines the store that its child serves, and starts children with [`Remote::spawn`]:
//!
//! ```ignore
//! const REMOTE_WORKER: ChildTest = child_test!(remote_worker);
//!
//! #[test]
//! fn remote_worker() {
//!     remote::serve(|work| async move { open(&work).await as Arc<dyn Store> });
//! }
//! ```
//!
//! The child is the test program itself, run for that one test. The socket is its standard input:
//! its standard output belongs to the test harness.
//!
//! The child receives the messages of a line in order, and drops a call that the parent dropped
//! before it receives any later one. So a dropped call is never executed after a later call, and a
//! line adds nothing to the `late_window` of its store. Between two lines there is no such order.

mod wire;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt;
use std::io::{BufReader, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use async_trait::async_trait;
use futures_util::FutureExt;
use futures_util::future::{AbortHandle, Aborted, abortable};
use futures_util::stream::{FuturesUnordered, StreamExt};
use leasehold::cells::rate::{Limit, Taken};
use leasehold::cells::store::{
    Answer, CellStore, Changed, Kept, Key, Plan, ScriptKey, Written, change_by_comparison,
};
use leasehold::{
    Acquired, Adopted, Capabilities, Claim, Clock, Converted, Deadline, Error, Evicted, Name, Released,
    Renewed, Result, Share, Status, Store, Ticket, Ttl,
};
use tokio::sync::oneshot;
use wire::Wire;

use super::child::ChildTest;

pub use wire::crossed;

const WORK: &str = "LEASEHOLD_TEST_REMOTE";

/// The id of the child's first message: its store's capabilities.
const HELLO: u64 = 0;

/// The message that drops a call.
const DROP: &str = "drop";

/// A store in a child process. Clones share the child, which ends with the last of them.
#[derive(Clone)]
pub struct Remote(Arc<Line>);

struct Line {
    child: Arc<Mutex<Child>>,
    pid: u32,
    /// Frames for the writer thread, so that a stopped child blocks no runtime.
    outbox: mpsc::Sender<Vec<u8>>,
    calls: Calls,
    last_call: AtomicU64,
    capabilities: Capabilities,
    clock: Clock,
}

/// The waiting callers; `None` once the process is gone.
type Calls = Arc<Mutex<Option<HashMap<u64, oneshot::Sender<Vec<u8>>>>>>;

impl Remote {
    /// Starts a child that opens `work`, and waits until it has. The clock's timer belongs to the
    /// calling runtime.
    pub async fn spawn(test: ChildTest, work: &str) -> Self {
        let (line, theirs) = UnixStream::pair().unwrap();
        let child =
            Remote::command(test, work).stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).spawn().unwrap();
        let (pid, child) = (child.id(), Arc::new(Mutex::new(child)));
        let (reply, hello) = oneshot::channel();
        let calls: Calls = Arc::new(Mutex::new(Some(HashMap::from([(HELLO, reply)]))));

        let (outbox, frames) = mpsc::channel::<Vec<u8>>();
        let mut to_child = line.try_clone().unwrap();
        thread::spawn(move || {
            while frames.recv().is_ok_and(|frame| to_child.write_all(&frame).is_ok()) {}
            // The last handle is dropped, which ends the child.
            let _ = to_child.shutdown(Shutdown::Write);
        });
        let (answered, reaped) = (calls.clone(), child.clone());
        thread::spawn(move || {
            read_frames(line, |id, body| {
                let caller = answered.lock().unwrap().as_mut().and_then(|calls| calls.remove(&id));
                caller.map(|caller| caller.send(body));
            });
            *answered.lock().unwrap() = None;
            reaped.lock().unwrap().wait().unwrap();
        });

        let hello = hello.await.expect("a child that opens its store (does the test call `remote::serve`?)");
        let (capabilities, clock) = (Wire::take(&mut &hello[..]), Clock::system().unwrap());
        let last_call = AtomicU64::new(HELLO);
        Remote(Arc::new(Line { child, pid, outbox, calls, last_call, capabilities, clock }))
    }

    /// Returns the child's command, for a test that starts it by itself.
    pub fn command(test: ChildTest, work: impl AsRef<OsStr>) -> Command {
        let mut command = test.command();
        command.env(WORK, work);
        command
    }

    pub fn pid(&self) -> u32 {
        self.0.pid
    }

    /// Kills the process, and waits for its end.
    pub fn kill(&self) {
        let mut child = self.0.child.lock().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

impl Line {
    async fn ask<T: Wire>(&self, call: impl Wire + Send) -> Result<T> {
        let gone =
            || Error::Unreachable { store: self.capabilities.store, why: "the process is gone".into() };
        let id = self.last_call.fetch_add(1, Ordering::Relaxed) + 1;
        let (reply, answer) = oneshot::channel();
        self.calls.lock().unwrap().as_mut().ok_or_else(gone)?.insert(id, reply);
        let _asked = Asked { line: self, id };
        self.send(id, &call);
        answer.await.map(|body| T::take(&mut &body[..])).map_err(|_| gone())
    }

    fn send(&self, id: u64, message: &impl Wire) {
        // It fails once the process is gone, which the reader reports to the callers.
        let _ = self.outbox.send(frame(id, message));
    }
}

/// A call under way. A drop before its answer drops it in the child too.
struct Asked<'a> {
    line: &'a Line,
    id: u64,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let unanswered = self.line.calls.lock().unwrap().as_mut().and_then(|calls| calls.remove(&self.id));
        if unanswered.is_some() {
            self.line.send(self.id, &DROP);
        }
    }
}

#[async_trait]
impl Store for Remote {
    async fn acquire(&self, claim: &Claim) -> Result<Acquired> {
        self.0.ask(("acquire", claim.clone())).await?
    }

    async fn renew(&self, due: &[(Ticket, Ttl)]) -> Vec<Result<Renewed>> {
        match self.0.ask(("renew", due.to_vec())).await {
            Ok(answers) => answers,
            Err(error) => due.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    async fn release(&self, ticket: &Ticket) -> Result<Released> {
        self.0.ask(("release", ticket.clone())).await?
    }

    async fn detach(&self, ticket: &Ticket, ttl: Ttl) -> Result<Renewed> {
        self.0.ask(("detach", (ticket.clone(), ttl))).await?
    }

    async fn convert(&self, ticket: &Ticket, to: Share) -> Result<Converted> {
        self.0.ask(("convert", (ticket.clone(), to))).await?
    }

    async fn inspect(&self, name: &Name) -> Result<Option<Status>> {
        self.0.ask(("inspect", name.clone())).await?
    }

    async fn list(&self, prefix: &str, limit: usize) -> Result<Vec<Status>> {
        self.0.ask(("list", (prefix.to_owned(), limit))).await?
    }

    async fn evict(&self, name: &Name) -> Result<Evicted> {
        self.0.ask(("evict", name.clone())).await?
    }

    async fn adopt(&self, _: &Name, _: Ttl) -> Result<Adopted> {
        let store = self.0.capabilities.store;
        Err(Error::Unsupported { store, what: "adopt", why: "it does not cross to another process" })
    }

    fn cells(&self) -> Option<&dyn CellStore> {
        self.0.capabilities.cells.then_some(self)
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities.clone()
    }

    /// The machine's clock, which is the same in all processes.
    fn clock(&self) -> &Clock {
        &self.0.clock
    }

    fn lifeline(&self) -> Result<Option<OwnedFd>> {
        Ok(None)
    }
}

#[async_trait]
impl CellStore for Remote {
    async fn read(&self, key: &Key) -> Result<Option<Kept>> {
        self.0.ask(("read", key.clone())).await?
    }

    async fn write(&self, key: &Key, write: &leasehold::cells::store::Write) -> Result<Written> {
        self.0.ask(("write", (key.clone(), write.clone()))).await?
    }

    async fn add(&self, key: &Key, by: i64, ttl: Option<Ttl>) -> Result<i64> {
        self.0.ask(("add", (key.clone(), (by, ttl)))).await?
    }

    async fn change(&self, key: &Key, plan: &mut Plan<'_>) -> Result<Changed> {
        change_by_comparison(self, key, plan).await
    }

    async fn run(&self, _source: &str, _keys: &[ScriptKey], _args: &[Vec<u8>]) -> Result<Answer> {
        panic!("no script crosses")
    }

    async fn take(&self, key: &Key, limit: &Limit, weight: u32) -> Result<Taken> {
        self.0.ask(("take", (key.clone(), (*limit, weight)))).await?
    }

    async fn changed(&self, key: &Key, from: Option<&[u8]>, until: Deadline) -> Result<()> {
        let changed: Result<bool> =
            self.0.ask(("changed", (key.clone(), (from.map(<[u8]>::to_vec), until)))).await?;
        changed.map(drop)
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Remote({} in process {})", self.0.capabilities.store, self.pid())
    }
}

/// Serves the store that `open` opens until the line ends. Does nothing outside a child.
pub fn serve<F: Future<Output = Arc<dyn Store>>>(open: impl FnOnce(String) -> F) {
    let Ok(work) = std::env::var(WORK) else { return };
    let line = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let store = open(work).await;
        serve_calls(store, line).await;
    });
    // Blocked threads end with the process.
    runtime.shutdown_background();
}

/// Polls all calls in one task, in order of arrival. [`FuturesUnordered`] gives each its own waker:
/// with a shared one, other wake-ups would hide a store that forgets to wake a waiter.
async fn serve_calls(store: Arc<dyn Store>, mut line: UnixStream) {
    let (heard, mut inbox) = tokio::sync::mpsc::unbounded_channel();
    let to_read = line.try_clone().unwrap();
    thread::spawn(move || read_frames(to_read, |id, body| drop(heard.send((id, body)))));
    let can = store.capabilities();
    assert_eq!(crossed(&can), can, "a capability that does not cross");
    line.write_all(&frame(HELLO, &can)).unwrap();

    let (mut calls, mut handles) = (FuturesUnordered::new(), HashMap::new());
    loop {
        tokio::select! {
            biased;
            // First, so that a call is polled or dropped before a later message is received.
            Some((id, answer)) = calls.next() => {
                handles.remove(&id);
                if let Ok::<Vec<u8>, Aborted>(answer) = answer {
                    // It fails if the parent is gone, which also ends the line.
                    let _ = line.write_all(&answer);
                }
            }
            heard = inbox.recv() => match heard {
                Some((id, message)) if String::take(&mut &message[..]) == DROP => {
                    handles.remove(&id).as_ref().map(AbortHandle::abort);
                }
                Some((id, call)) => {
                    let (call, handle) = abortable(answer(store.clone(), id, call));
                    handles.insert(id, handle);
                    calls.push(call.map(move |answer| (id, answer)));
                }
                None => return,
            },
        }
    }
}

async fn answer(store: Arc<dyn Store>, id: u64, call: Vec<u8>) -> Vec<u8> {
    let from = &mut &call[..];
    match String::take(from).as_str() {
        "acquire" => frame(id, &store.acquire(&Wire::take(from)).await),
        "renew" => frame(id, &store.renew(&Vec::take(from)).await),
        "release" => frame(id, &store.release(&Wire::take(from)).await),
        "detach" => frame(id, &store.detach(&Wire::take(from), Wire::take(from)).await),
        "convert" => frame(id, &store.convert(&Wire::take(from), Wire::take(from)).await),
        "inspect" => frame(id, &store.inspect(&Wire::take(from)).await),
        "list" => frame(id, &store.list(&String::take(from), Wire::take(from)).await),
        "evict" => frame(id, &store.evict(&Wire::take(from)).await),
        call => answer_of_cells(store.cells().unwrap(), id, call, from).await,
    }
}

async fn answer_of_cells(cells: &dyn CellStore, id: u64, call: &str, from: &mut &[u8]) -> Vec<u8> {
    let key = Key::take(from);
    match call {
        "read" => frame(id, &cells.read(&key).await),
        "write" => frame(id, &cells.write(&key, &Wire::take(from)).await),
        "add" => frame(id, &cells.add(&key, Wire::take(from), Wire::take(from)).await),
        "take" => frame(id, &cells.take(&key, &Wire::take(from), Wire::take(from)).await),
        "changed" => {
            let (known, until): (Option<Vec<u8>>, Deadline) = Wire::take(from);
            frame(id, &cells.changed(&key, known.as_deref(), until).await.map(|()| true))
        }
        other => panic!("{other} is no call"),
    }
}

/// Encodes a frame: the call's id, the length, and the bytes.
fn frame(id: u64, value: &impl Wire) -> Vec<u8> {
    let mut body = Vec::new();
    value.put(&mut body);
    let mut frame = [id.to_le_bytes(), (body.len() as u64).to_le_bytes()].concat();
    frame.extend(body);
    frame
}

fn read_frames(line: UnixStream, mut each: impl FnMut(u64, Vec<u8>)) {
    let (mut line, mut head) = (BufReader::new(line), [0; 16]);
    while line.read_exact(&mut head).is_ok() {
        let mut head = &head[..];
        let (id, length) = Wire::take(&mut head);
        let mut body = vec![0; length];
        if line.read_exact(&mut body).is_err() {
            return;
        }
        each(id, body);
    }
}
