//! `redis:` beside other libraries that lock the same key: nobody gets in beside another, in either direction.

use leasehold_testkit as common;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{home, scaled};
use leasehold_lab::{Kind, Server};

/// Reads, adds one, writes, with a moment in between: whoever runs beside it loses an update.
const PYTHON: &str = "
import sys, time
sys.path.insert(0, sys.argv[1])
import redis
lock = redis.Redis(port=int(sys.argv[2])).lock('lock:company', timeout=20, sleep=0.001)
for _ in range(int(sys.argv[4])):
    with lock:
        count = int(open(sys.argv[3]).read())
        time.sleep(0.0005)
        open(sys.argv[3], 'w').write(str(count + 1))
";

const NODE: &str = "
const [, , modules, port, file, rounds] = process.argv;
const Redis = require(modules + '/ioredis');
const { default: Redlock } = require(modules + '/redlock');
const fs = require('fs');
(async () => {
  const client = new Redis(Number(port));
  const redlock = new Redlock([client], { retryCount: 100000, retryDelay: 2, retryJitter: 1, automaticExtensionThreshold: 500 });
  for (let i = 0; i < Number(rounds); i++) {
    const lock = await redlock.acquire(['lock:company'], 20000);
    const count = Number(fs.readFileSync(file, 'utf8'));
    await new Promise((resolve) => setTimeout(resolve, 1));
    fs.writeFileSync(file, String(count + 1));
    await lock.release();
  }
  client.disconnect();
})().catch((error) => { console.error(error); process.exit(1); });
";

/// Where `cargo xtask test` has put them: beside the directory the tests are built in.
fn company() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let found = exe.ancestors().map(|folder| folder.join("tools/company")).find(|company| company.is_dir());
    found.expect("`cargo xtask test` installs redis-py and node-redlock")
}

fn python(port: u16, counter: &Path, rounds: u64) -> Child {
    let mut command = Command::new("python3");
    command.args(["-c", PYTHON]).arg(company().join("python"));
    started(command, port, counter, rounds)
}

fn node(port: u16, counter: &Path, rounds: u64) -> Child {
    let mut command = Command::new("node");
    command.args(["-e", NODE, "--", ""]).arg(company().join("node/node_modules"));
    started(command, port, counter, rounds)
}

fn started(mut command: Command, port: u16, counter: &Path, rounds: u64) -> Child {
    command.arg(port.to_string()).arg(counter).arg(rounds.to_string());
    command.stdin(Stdio::null()).spawn().unwrap()
}

/// We and they, each `rounds` times, from two tasks of two clients and from one process of theirs.
async fn counts_exactly(name: &str, theirs: fn(u16, &Path, u64) -> Child) {
    let home = home(name);
    let counter = home.path().join("counter");
    std::fs::write(&counter, "0").unwrap();
    let server = Server::start(Kind::Redis).unwrap();
    let rounds = scaled(2_000);
    let mut they = theirs(server.addr().port(), &counter, rounds);
    let ours = (0..2).map(|_| {
        let (url, counter) = (server.url(), counter.clone());
        tokio::spawn(async move {
            let locks = leasehold::connect(&url).await.unwrap();
            for _ in 0..rounds {
                let lease = locks.mutex("company").lock().await.unwrap();
                let count: u64 = std::fs::read_to_string(&counter).unwrap().parse().unwrap();
                tokio::time::sleep(Duration::from_micros(500)).await;
                std::fs::write(&counter, (count + 1).to_string()).unwrap();
                lease.release().await.unwrap();
            }
            locks.close().await;
        })
    });
    for task in ours.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    let ended = tokio::task::spawn_blocking(move || they.wait().unwrap()).await.unwrap();
    assert!(ended.success(), "{name}: {ended}");
    assert_eq!(std::fs::read_to_string(&counter).unwrap(), (3 * rounds).to_string(), "{name}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beside_redis_py_the_count_is_exact() {
    counts_exactly("redis_py", python).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beside_node_redlock_the_count_is_exact() {
    counts_exactly("node_redlock", node).await;
}
