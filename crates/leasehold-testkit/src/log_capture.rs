//! A captured log for a test to read.

use std::fmt::Debug;
use std::io::Write;
use std::sync::{Arc, Mutex};

use tracing_subscriber::filter::LevelFilter;

#[derive(Clone, Default)]
pub struct LogCapture(Arc<Mutex<Vec<u8>>>);

impl LogCapture {
    /// Captures the log of this process from now on, for a test
    /// [in its own process](crate::child::ChildTest::in_own_process).
    pub fn of_process() -> Self {
        let capture = LogCapture::default();
        let writer = capture.clone();
        let log =
            tracing_subscriber::fmt().with_max_level(LevelFilter::TRACE).with_ansi(false).without_time();
        log.with_writer(move || writer.clone()).init();
        capture
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    /// Adds both debug formats of a value.
    pub fn note(&self, value: &impl Debug) {
        let text = format!("{value:?}\n{value:#?}\n");
        self.0.lock().unwrap().extend(text.into_bytes());
    }

    /// Returns the text and clears it.
    pub fn taken(&self) -> String {
        String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap()
    }
}

impl Write for LogCapture {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
