//! The stampede of a cache, and the cache that has none: a hundred callers want a value that has just expired, first the usual way
//! (look, load, write) and then through `get_or_load`. Run it with `cargo run -p leasehold --example cache`, on the embedded store,
//! or with a store's URL behind it (`-- memory:`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::{Cache, LoadError, Locks};

const CALLERS: u64 = 100;
const TTL: Duration = Duration::from_secs(60);

/// A database, which gets slower the more ask it, and counts them.
#[derive(Default)]
struct Database {
    queries: AtomicU64,
}

impl Database {
    async fn price(&self, of: &str) -> Result<Vec<u8>, String> {
        self.queries.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(200)).await;
        Ok(format!("the price of {of}").into_bytes())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = std::env::args().nth(1).unwrap_or_else(|| "file:".to_owned());
    let locks = leasehold::connect(&store).await?;
    println!("without a guard: {} queries for {CALLERS} callers", crowd(&locks, aside).await?);
    println!("get_or_load:     {} for {CALLERS} callers", crowd(&locks, guarded).await?);

    // What is stale is served while one caller loads anew, for up to ten seconds past its TTL.
    let prices = locks.cache("prices").stale_for(Duration::from_secs(10));
    let old = || async { Ok::<_, String>(b"old".to_vec()) };
    prices.refresh("pears", Duration::from_millis(50), old).await?;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let database = Database::default();
    let load = || async {
        let others = prices.get("pears").await.ok().flatten().unwrap_or_default();
        println!("while one loads, the others have: {}", String::from_utf8_lossy(&others));
        database.price("pears").await
    };
    let new = prices.get_or_load("pears", TTL, load).await?;
    println!("and then: {}", String::from_utf8_lossy(&new));

    // The price has changed: what was loaded before this is not kept, not even by a loader that is at it.
    prices.invalidate("pears").await?;
    locks.close().await;
    Ok(())
}

/// Has a hundred callers ask at once; says how many queries that was.
async fn crowd<W>(
    locks: &Locks,
    ask: fn(Cache, Arc<Database>) -> W,
) -> Result<u64, Box<dyn std::error::Error>>
where
    W: Future<Output = Result<Vec<u8>, LoadError<String>>> + Send + 'static,
{
    let (prices, database) = (locks.cache("prices"), Arc::new(Database::default()));
    prices.invalidate("apples").await?;
    let callers: Vec<_> = (0..CALLERS).map(|_| tokio::spawn(ask(prices.clone(), database.clone()))).collect();
    for caller in callers {
        assert_eq!(caller.await??, b"the price of apples");
    }
    prices.invalidate("apples").await?;
    Ok(database.queries.load(Ordering::SeqCst))
}

/// Look, load, write: everybody who finds nothing asks the database.
async fn aside(prices: Cache, database: Arc<Database>) -> Result<Vec<u8>, LoadError<String>> {
    if let Some(price) = prices.get("apples").await? {
        return Ok(price);
    }
    let price = database.price("apples").await.map_err(LoadError::Failed)?;
    let loaded = price.clone();
    prices.refresh("apples", TTL, || async { Ok(loaded) }).await
}

/// One of them asks the database, and the others wait for its answer.
async fn guarded(prices: Cache, database: Arc<Database>) -> Result<Vec<u8>, LoadError<String>> {
    prices.get_or_load("apples", TTL, || async { database.price("apples").await }).await
}
