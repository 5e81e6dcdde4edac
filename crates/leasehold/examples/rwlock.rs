//! Readers and a writer: shared, had alone, and changed from one into the other without a gap. Run it with
//! `cargo run -p leasehold --example rwlock`, on the embedded store, or with a store's URL behind it (`-- memory:`).

use leasehold::Upgrade;

#[tokio::main(flavor = "current_thread")]
async fn main() -> leasehold::Result<()> {
    let store = std::env::args().nth(1).unwrap_or_else(|| "file:".to_owned());
    let locks = leasehold::connect(&store).await?;
    let prices = locks.rwlock("prices");

    // Readers share it, and a writer would have to wait.
    let (one, two) = (prices.read().await?, prices.read().await?);
    println!("readers: fences {} and {}", one.fence(), two.fence());
    println!("writer:  {:?}", prices.try_write().await?.map(|lease| lease.fence()));

    // Whoever reads may try to write. Beside another reader that is refused at once, and nothing has changed.
    let one = match one.upgrade().await? {
        Upgrade::Refused(reader) => {
            println!("upgrade: refused, still a reader with fence {}", reader.fence());
            reader
        }
        Upgrade::Granted(writer) => writer,
    };
    two.release().await?;
    if let Upgrade::Granted(writer) = one.upgrade().await? {
        println!("upgrade: a writer with fence {}", writer.fence());

        // Done writing, it goes on reading what it wrote: nobody writes in between.
        let reader = writer.downgrade().await?;
        println!("back:    a reader with fence {}", reader.fence());
        reader.release().await?;
    }

    locks.close().await;
    Ok(())
}
