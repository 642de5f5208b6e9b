// Search runs in a worker, which browsers refuse to a page opened from disk (file:). There a hidden
// frame does the worker's work. The name iframe-worker in mkdocs.yml keeps the theme from loading
// one from elsewhere.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.waiting = []
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inside = frame.contentWindow
      inside.postMessage = data => this.hear(data)
      inside.importScripts = (...urls) => urls.forEach(each => this.load(inside, each))
      inside.onerror = (message, source, line, column, error) =>
        this.dispatchEvent(new ErrorEvent("error", { message, error }))
      this.load(inside, url, () => {
        this.inside = inside
        this.waiting.splice(0).forEach(data => this.postMessage(data))
      })
    }

    load(inside, url, done) {
      const script = inside.document.createElement("script")
      script.src = url
      script.onload = done
      inside.document.body.append(script)
    }

    hear(data) {
      const event = new MessageEvent("message", { data })
      this.dispatchEvent(event)
      if (this.onmessage) this.onmessage(event)
    }

    postMessage(data) {
      if (!this.inside) {
        this.waiting.push(data)
        return
      }
      const event = new this.inside.MessageEvent("message", { data })
      this.inside.dispatchEvent(event)
    }

    terminate() {}
  }
}
