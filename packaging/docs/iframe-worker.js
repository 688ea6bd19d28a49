// SPDX-License-Identifier: Apache-2.0
// The search runs in a worker, which browsers refuse to pages that are opened as files: there, a hidden frame runs the
// worker's script. Otherwise mkdocs-material loads the package iframe-worker from the network for that.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inner = frame.contentWindow;
      this.inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data: structuredClone(data) }));
      this.started = new Promise((resolve) => { this.inner.started = resolve; });
      this.inner.document.open();
      this.inner.document.write(`<script src="${new URL(url, location)}" onload="started()"></` + "script>");
      this.inner.document.close();
    }
    postMessage(data) {
      this.started.then(() =>
        this.inner.dispatchEvent(new this.inner.MessageEvent("message", { data: this.inner.structuredClone(data) })));
    }
  };
}
