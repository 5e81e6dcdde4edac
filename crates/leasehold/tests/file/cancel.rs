//! `file:`, cancelled at every await point, with its runtime gone in the middle, opened and closed many times: nothing is
//! left in the database, in the directory, among the tasks and the descriptors.

use leasehold_testkit as common;

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::cancel_points::{Actors, OPERATIONS, Operation, at_every_await_point};
use common::child_test;
use common::disk::{Disk, SOON, none_soon};
use common::{Dice, client, in_parallel, ms, scaled, secs};
use leasehold::store::file::File;
use tokio::runtime::{Builder, Handle, Runtime};

/// Keeps the store's gate shut now and then, as another process would that writes: no operation is done at once then,
/// each goes through the queue and another thread.
struct Gate {
    file: Arc<fs::File>,
    is_kept: Arc<AtomicBool>,
    is_over: Arc<AtomicBool>,
    keeper: Option<std::thread::JoinHandle<()>>,
}

impl Gate {
    fn of(disk: &Disk) -> Self {
        let file = Arc::new(fs::File::open(disk.path().join("gate")).unwrap());
        let (is_kept, is_over): (Arc<AtomicBool>, Arc<AtomicBool>) = Default::default();
        let keeper = std::thread::spawn({
            let (file, is_kept, is_over) = (file.clone(), is_kept.clone(), is_over.clone());
            move || {
                let mut dice = Dice(7);
                let mut rest = |us| std::thread::sleep(Duration::from_micros(dice.below(us)));
                while !is_over.load(Ordering::SeqCst) {
                    if !is_kept.load(Ordering::SeqCst) {
                        std::thread::park_timeout(ms(1));
                        continue;
                    }
                    file.lock().unwrap();
                    rest(400);
                    file.unlock().unwrap();
                    rest(50);
                }
            }
        });
        Gate { file, is_kept, is_over, keeper: Some(keeper) }
    }

    /// It is shut when the work begins, and from then on now and then.
    async fn kept_during<T>(&self, work: impl Future<Output = T>) -> T {
        self.file.lock().unwrap();
        self.is_kept.store(true, Ordering::SeqCst);
        self.keeper.as_ref().unwrap().thread().unpark();
        let done = work.await;
        self.is_kept.store(false, Ordering::SeqCst);
        // If the work was over before the keeper knew of it.
        self.file.unlock().unwrap();
        done
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        let keeper = self.keeper.take().unwrap();
        keeper.thread().unpark();
        keeper.join().unwrap();
    }
}

/// One operation of one client, with another client of the same store, cut off; and all that must be so after it.
async fn leaves_nothing(disk: &Disk, gate: Option<&Gate>, attempt: impl AsyncFn(&Actors) -> bool) -> bool {
    let [first, second] = [(); 2].map(|()| async { Arc::new(File::open(disk.path()).await.unwrap()) });
    let (first, second) = (first.await, second.await);
    let (a, b) = (client(&first, "a"), client(&second, "b"));
    let actors = Actors { store: first, a, b, held_for: ms(2), ttl: ms(30) };
    let living = disk.clients();
    assert_eq!(living.len(), 2 * 3, "each has a lock and two sockets: {living:?}");
    let attempted = async {
        let finished = attempt(&actors).await;
        actors.a.settled().await;
        actors.b.settled().await;
        finished
    };
    let finished = match gate {
        Some(gate) => gate.kept_during(attempted).await,
        None => attempted.await,
    };
    none_soon("held and waiting", || disk.rows()).await;
    assert_eq!(disk.clients(), living);
    drop((actors, second));
    none_soon("tasks", || Handle::current().metrics().num_alive_tasks()).await;
    assert_eq!(disk.clients(), Vec::<String>::new());
    finished
}

/// Steps of 20 µs at first, and longer ones where an operation does little but wait.
fn delay(point: usize) -> Duration {
    Duration::from_micros(20) * (point + point * point / 10) as u32
}

fn nothing_stays(in_turn: bool, runtime: fn() -> Runtime) {
    let total = AtomicUsize::new(0);
    let rounds = scaled(20);
    in_parallel(rounds * OPERATIONS.len() as u64, |i| {
        let (what, operation): (&str, Operation) = OPERATIONS[i as usize % OPERATIONS.len()];
        let disk = runtime().block_on(Disk::new());
        let gate = in_turn.then(|| Gate::of(&disk));
        let points = at_every_await_point(what, delay, |cut| {
            runtime()
                .block_on(leaves_nothing(&disk, gate.as_ref(), async |actors| operation(actors, cut).await))
        });
        println!("{what}: cancelled at {points} points");
        total.fetch_add(points, Ordering::Relaxed);
    });
    println!("cancelled at {} points", total.into_inner());
}

fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn two_threads() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

#[test]
fn nothing_stays_of_an_operation_that_is_done_at_once_and_cancelled_at_any_await_point() {
    nothing_stays(false, one_thread);
}

#[test]
fn nothing_stays_of_an_operation_that_waits_for_its_turn_and_is_cancelled_at_any_await_point() {
    nothing_stays(true, two_threads);
}

/// A client holds `x` and waits for `y`; a second client holds `y` and waits for `x`. Then the first one's runtime ends.
fn the_runtime_ends(runtime: fn() -> Runtime, end: fn(Runtime)) {
    let others = two_threads();
    let disk = others.block_on(Disk::new());
    let open = || async { Arc::new(File::open(disk.path()).await.unwrap()) };
    let other = others.block_on(async { client(&open().await, "other") });
    for round in 0..scaled(200) {
        let ending = runtime();
        let store = ending.block_on(open());
        let held = others.block_on(other.mutex("y").lock()).unwrap();
        ending.block_on(async {
            let locks = client(&store, "ending");
            let lease = locks.mutex("x").lock().await.unwrap();
            tokio::spawn(async move {
                let _in_vain = locks.mutex("y").lock().await;
                drop(lease);
            });
        });
        let mutex = other.mutex("x");
        let waiter = others.spawn(async move { mutex.lock().await });
        ending.block_on(none_soon("not in line", || 2 - disk.rows().1));
        // A store that somebody still has lives without its runtime too, though it does nothing any more.
        let kept = (round % 2 == 1).then_some(store);
        end(ending);
        others.block_on(async {
            if let Some(store) = kept {
                assert!(other.mutex("x").try_lock().await.unwrap().is_none(), "the client lives");
                drop(store);
            }
            let since = Instant::now();
            let lease = tokio::time::timeout(SOON, waiter).await.expect("the waiter hears of it");
            lease.unwrap().unwrap().release().await.unwrap();
            // Far below its TTL of 30 s.
            assert!(since.elapsed() < secs(1), "{:?} until it was free", since.elapsed());
            held.release().await.unwrap();
            other.settled().await;
            none_soon("held and waiting", || disk.rows()).await;
            none_soon("files of the dead", || disk.clients().len() - 3).await;
        });
    }
}

#[test]
fn what_a_client_had_is_free_as_soon_as_its_runtime_and_it_are_dropped() {
    the_runtime_ends(one_thread, drop);
    the_runtime_ends(two_threads, drop);
}

#[test]
fn what_a_client_had_is_free_as_soon_as_its_runtime_is_shut_down_in_the_background() {
    the_runtime_ends(one_thread, Runtime::shutdown_background);
    the_runtime_ends(two_threads, Runtime::shutdown_background);
}

#[test]
fn opening_and_closing_leaves_no_descriptor_no_task_and_no_file() {
    child_test!(opening_and_closing_leaves_no_descriptor_no_task_and_no_file).in_own_process(open_and_close);
}

/// In a process of its own, whose descriptors are counted.
fn open_and_close() {
    let runtime = two_threads();
    let descriptors = || fs::read_dir("/proc/self/fd").unwrap().count();
    let at_first = descriptors();
    let disk = runtime.block_on(Disk::new());
    let gate = Gate::of(&disk);
    for round in 0..200 {
        runtime.block_on(leaves_nothing(&disk, (round % 2 == 1).then_some(&gate), async |it| {
            // One waits, so that each has a connection to the other.
            let held = it.b.mutex("x").lock().await.unwrap();
            let (lease, ()) = tokio::join!(it.a.mutex("x").lock(), async {
                none_soon("not in line", || 1 - disk.rows().1).await;
                held.release().await.unwrap();
            });
            lease.unwrap().release().await.unwrap();
            true
        }));
    }
    // With our own connection goes what SQLite keeps open for as long as anybody in this process has the database.
    drop((gate, disk));
    runtime.block_on(none_soon("more descriptors", || descriptors().saturating_sub(at_first)));
}
