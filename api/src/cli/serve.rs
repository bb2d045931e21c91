//! `weft serve`.

use crate::http;
use crate::settings::{Overrides, Written, costs_file};

use super::args::{LocalArgs, ServeArgs};
use super::{Failure, out};

pub(super) async fn serve(args: ServeArgs) -> Result<(), Failure> {
    let written = match &args.config {
        Some(path) => Written::read(path)?,
        None => Written::default(),
    };
    let flags = Overrides {
        models: args.model,
        pipelines: args.pipelines,
        listen: args.listen,
        device: args.device,
        threads: args.threads,
    };
    let (mut config, settings) = written.resolve(flags)?;
    config.costs = costs_file();
    let placeholder = config.models.iter().any(|m| m.placeholder);
    let waiting = out::spinner("loading models");
    let began = std::time::Instant::now();
    let server = http::serve(settings, config).await?;
    waiting.finish_and_clear();
    out::note(&format!("ready in {:.2} s on http://{}", began.elapsed().as_secs_f64(), server.address));
    if placeholder {
        out::note(crate::embedded::PLACEHOLDER_NOTICE);
    }
    stop_signal().await;
    out::note("stopping: finishing running requests (interrupt again to stop at once)");
    tokio::select! {
        () = server.stop() => {}
        () = stop_signal() => {}
    }
    Ok(())
}

/// Resolves at Ctrl-C or, on Unix, at SIGTERM.
pub(super) async fn stop_signal() {
    let interrupt = tokio::signal::ctrl_c();
    #[cfg(unix)]
    {
        let terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate());
        if let Ok(mut terminate) = terminate {
            tokio::select! {
                _ = interrupt => {}
                _ = terminate.recv() => {}
            }
            return;
        }
    }
    let _without_signals_run_for_ever = interrupt.await;
}

/// Configuration for commands that work without a server.
pub(super) fn local(args: &LocalArgs) -> Result<weft_pipelines::config::RuntimeConfig, Failure> {
    let written = match &args.config {
        Some(path) => Written::read(path)?,
        None => Written::default(),
    };
    let flags = Overrides {
        models: args.model.clone(),
        pipelines: args.pipelines.clone(),
        listen: None,
        device: args.device,
        threads: args.threads,
    };
    Ok(written.resolve(flags)?.0)
}
