"""Figures as plain SVG, without script and without network: the pictures in saved notebooks.

picture   a figure as SVG
canvas    positions: size, axes, legend
axes      numbers of a trace as pixels, ticks and labels
traces    bars, heat maps, lines, points and areas
parts     paints, lines, texts
"""
