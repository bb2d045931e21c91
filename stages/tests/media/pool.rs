//! Bounded inboxes, cancelled work, panics, the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use weft_stages::{ErrorKind, Stages, StagesConfig};

use crate::fixtures::fixture;
use crate::{qwen, whisper};

fn small() -> Stages {
    let config =
        StagesConfig { image_workers: 1, audio_workers: 1, text_workers: 1, inbox: 3, ..StagesConfig::default() };
    Stages::start(config).unwrap()
}

/// A text job that holds the only worker until the returned sender is dropped.
fn hold(stages: &Stages) -> (flume::Sender<()>, tokio::task::JoinHandle<()>) {
    let (release, held) = flume::bounded::<()>(1);
    let (begun, started) = flume::bounded(1);
    let stages = stages.clone();
    let task = tokio::spawn(async move {
        let job = move || {
            begun.send(()).unwrap();
            let _released = held.recv();
        };
        stages.text(job).await.unwrap();
    });
    tokio::task::block_in_place(|| started.recv_timeout(Duration::from_secs(10)).unwrap());
    (release, task)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_inbox_refuses_at_once_and_room_comes_back() {
    let stages = small();
    let (release, held) = hold(&stages);
    let done = Arc::new(AtomicUsize::new(0));
    let waiting: Vec<_> = (0..3)
        .map(|_| {
            let (stages, done) = (stages.clone(), Arc::clone(&done));
            tokio::spawn(async move { stages.text(move || done.fetch_add(1, Ordering::SeqCst)).await })
        })
        .collect();
    while stages.depth().text.waiting < 3 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(stages.depth().text.busy, 1);
    for _ in 0..1000 {
        let begun = Instant::now();
        let error = stages.text(|| ()).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Overloaded, "{error}");
        assert!(begun.elapsed() < Duration::from_millis(200));
    }
    assert_eq!(stages.depth().text.waiting, 3, "refusals leave nothing behind");
    drop(release);
    held.await.unwrap();
    for task in waiting {
        task.await.unwrap().unwrap();
    }
    assert_eq!(done.load(Ordering::SeqCst), 3);
    assert_eq!(stages.text(|| 7).await.unwrap(), 7);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_work_is_skipped_and_makes_room() {
    let stages = small();
    let (release, held) = hold(&stages);
    let ran = Arc::new(AtomicUsize::new(0));
    let gone: Vec<_> = (0..3)
        .map(|_| {
            let (stages, ran) = (stages.clone(), Arc::clone(&ran));
            tokio::spawn(async move { stages.text(move || ran.fetch_add(1, Ordering::SeqCst)).await })
        })
        .collect();
    while stages.depth().text.waiting < 3 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for task in gone {
        task.abort();
        let _aborted = task.await;
    }
    let last = tokio::spawn({
        let stages = stages.clone();
        async move { stages.text(|| "served").await }
    });
    while stages.depth().text.waiting != 1 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    drop(release);
    held.await.unwrap();
    assert_eq!(last.await.unwrap().unwrap(), "served");
    assert_eq!(ran.load(Ordering::SeqCst), 0, "nobody waited for these");
}

#[tokio::test]
async fn a_panic_costs_one_request_and_the_worker_lives() {
    let stages = small();
    let error = stages.text(|| -> () { panic!("a decoder's fault, on purpose") }).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Internal);
    assert!(!error.message.contains("on purpose"), "inner texts stay inside: {error}");
    assert_eq!(stages.text(|| 1).await.unwrap(), 1);
    // A reply leaves just before its worker is counted as free.
    for _ in 0..1000 {
        if stages.depth().text.busy == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("a worker is still counted as busy");
}

#[tokio::test]
async fn media_run_beside_text_and_report_their_times() {
    let stages = small();
    let picture = stages.image(fixture("odd/good.png").into(), Arc::new(qwen(100_000)));
    let clip = stages.audio(fixture("odd/clip.wav").into(), Arc::new(whisper()));
    let (picture, clip) = (picture.await.unwrap(), clip.await.unwrap());
    assert!(picture.worked > Duration::ZERO && clip.worked > Duration::ZERO);
    assert_eq!(clip.value.frames, 3000);
}

#[test]
fn the_last_drop_joins_and_waiting_callers_are_told() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let stages = small();
    let job = {
        let _inside = runtime.enter();
        let stages = stages.clone();
        // A job that ends by itself while the stages are going down.
        runtime.spawn(async move { stages.text(|| std::thread::sleep(Duration::from_millis(50))).await })
    };
    runtime.block_on(job).unwrap().unwrap();
    let begun = Instant::now();
    drop(stages);
    assert!(begun.elapsed() < Duration::from_secs(5), "the drop joins and does not hang");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_may_drop_the_last_handle() {
    let stages = small();
    let (begun, started) = flume::bounded(1);
    let (release, held) = flume::bounded::<()>(1);
    let (ended, end) = flume::bounded(1);
    let task = tokio::spawn(async move {
        let handle = stages.clone();
        let job = move || {
            begun.send(()).unwrap();
            let _released = held.recv();
            drop(stages);
            ended.send(()).unwrap();
        };
        handle.text(job).await
    });
    started.recv_async().await.unwrap();
    task.abort();
    let _aborted = task.await;
    drop(release);
    tokio::time::timeout(Duration::from_secs(5), end.recv_async()).await.unwrap().unwrap();
}
