"""The look of the HTML report. System fonts and two sets of colours; nothing is fetched."""

STYLE = """
:root{--bg:#fbfbfa;--ink:#1d2428;--soft:#5d686f;--line:#dfe3e5;--card:#fff;--c0:#1a6fb0;--c1:#c8501e;--c2:#2a8a4a;--c3:#8a5bb5;
--c4:#a9b4ba;--c5:#76838b;--c6:#b8860b;--bad:#a3261a;--warn:#fff5d9;--warnline:#dfc06a}
@media (prefers-color-scheme:dark){:root{--bg:#14181b;--ink:#e4e9ec;--soft:#9aa6ad;--line:#2d363b;--card:#1b2125;--c0:#5fb0ee;
--c1:#f08a55;--c2:#62c383;--c3:#bd96e0;--c4:#56636b;--c5:#8d9aa2;--c6:#dcb04a;--bad:#ef7d70;--warn:#322b17;--warnline:#7d6a2c}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1180px;margin:0 auto;padding:16px}
h1{font-size:1.25rem;margin:.2em 0;overflow-wrap:anywhere}
h2{font-size:.95rem;margin:0}
p.sub,figcaption p,footer{color:var(--soft);margin:.15em 0;font-size:.85rem}
.banner{border:1px solid var(--warnline);background:var(--warn);border-radius:6px;padding:.5em .8em;margin:.6em 0}
.banner.bad{border-color:var(--bad);color:var(--bad);font-weight:600}
.banner ul{margin:.2em 0;padding-left:1.2em}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(104px,1fr));gap:8px;margin:14px 0}
.tiles div,figure,section{background:var(--card);border:1px solid var(--line);border-radius:8px}
.tiles div{padding:8px 10px}
.tiles b{display:block;font-size:1.15rem;font-variant-numeric:tabular-nums;white-space:nowrap}
.tiles span{color:var(--soft);font-size:.8rem}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,340px),1fr));gap:12px}
figure{margin:0;padding:12px}
svg{display:block;width:100%;height:auto;margin-top:8px}
svg text{fill:var(--soft);font-size:10.5px;font-family:inherit}
.g{stroke:var(--line);fill:none}
.s{fill:none;stroke-width:1.8;stroke-linejoin:round;stroke:currentColor}
.d{stroke-dasharray:4 4}
.f{fill:currentColor}
.c0{color:var(--c0)}.c1{color:var(--c1)}.c2{color:var(--c2)}.c3{color:var(--c3)}.c4{color:var(--c4)}.c5{color:var(--c5)}.c6{color:var(--c6)}
svg text.v{fill:var(--ink);font-size:12px}
.o{fill:none;stroke-width:2.5;stroke:currentColor}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:2px 14px;margin:8px 0 0;padding:0;font-size:.8rem}
.k{display:inline-block;width:10px;height:10px;border-radius:2px;background:currentColor;margin-right:5px}
.tables{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,500px),1fr));gap:12px;margin-top:12px;align-items:start}
section{padding:12px}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.82rem;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:3px 8px;border-bottom:1px solid var(--line);vertical-align:top}
th{color:var(--soft);font-weight:500}
th:first-child,td:first-child{text-align:left;padding-left:0}
.numbers td,.numbers th{white-space:nowrap}
.cards td,.cards th{white-space:nowrap}
.cards td:first-child{white-space:normal}
.words td:first-child{width:22%}
.reasons{table-layout:fixed}
.reasons td,.reasons th{text-align:left;overflow-wrap:anywhere}
.answer{font-size:1.05rem;margin:.6em 0;max-width:60em}
.wide{margin-top:12px}
.words td:last-child,.words th:last-child{text-align:left;overflow-wrap:anywhere}
footer{margin:14px 0}
@media (max-width:480px){th,td{padding:3px 4px}.numbers{font-size:.76rem}
.cards tr:first-child{display:none}
.cards tr{display:grid;grid-template-columns:repeat(4,1fr);gap:2px 8px;padding:8px 0;border-bottom:1px solid var(--line)}
.cards td{text-align:left;border:0;padding:0;white-space:normal}.cards td:first-child{grid-column:1/-1;font-weight:600}
.cards td::before{content:attr(data-name);display:block;color:var(--soft);font-size:.72rem;font-weight:400}
.cards td:first-child::before{content:none}}
@media print{:root{--bg:#fff;--card:#fff;--ink:#000;--soft:#444;--line:#bbb;--c0:#1a6fb0;--c1:#c8501e;--c2:#2a8a4a;--c3:#8a5bb5;
--c4:#999;--c5:#777;--c6:#b8860b;--bad:#a3261a;--warn:#fff;--warnline:#999}
body{font-size:11px}main{max-width:none;padding:0}.grid,.tables{grid-template-columns:1fr 1fr}
.cards{font-size:.66rem}.cards td,.cards th,.numbers th{white-space:normal;padding:2px 4px}
tr,figure,.tables section,.tiles div{break-inside:avoid}*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""
