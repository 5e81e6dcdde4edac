//! An owner that takes again what it holds: a step that locks what the job around it may have locked. Run it with
//! `cargo run -p leasehold --example owner`, on the embedded store, or with a store's URL behind it (`-- memory:`).

use leasehold::Scope;

#[tokio::main(flavor = "current_thread")]
async fn main() -> leasehold::Result<()> {
    let store = std::env::args().nth(1).unwrap_or_else(|| "file:".to_owned());
    let locks = leasehold::connect(&store).await?;
    let job = locks.owner("import-7");

    // By itself a step takes the lock, and lets go of it.
    step(&job, "alone").await?;

    // Inside the job it takes it too, with the same fence, and the job still has it afterwards.
    let lease = job.mutex("orders").lock().await?;
    println!("job:   fence {}", lease.fence());
    step(&job, "inside").await?;
    println!("job:   still held, {} time", lease.count());

    // To everybody else it is held, in this process too.
    println!("other: {:?}", locks.owner("import-8").mutex("orders").try_lock().await?.map(|it| it.fence()));
    println!("plain: {:?}", locks.mutex("orders").try_lock().await?.map(|it| it.fence()));
    lease.release().await?;

    locks.close().await;
    Ok(())
}

async fn step(job: &Scope, how: &str) -> leasehold::Result<()> {
    let lease = job.mutex("orders").lock().await?;
    println!("step:  {how}, fence {}, held {} times", lease.fence(), lease.count());
    lease.release().await
}
